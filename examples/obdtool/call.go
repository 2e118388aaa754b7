package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/term"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// call is one run of a command.
type call struct {
	ctx            context.Context
	stdout, stderr io.Writer
	flags          *flag.FlagSet
	json           bool
}

func newCall(ctx context.Context, cmd command, stdout, stderr io.Writer) *call {
	c := &call{ctx: ctx, stdout: stdout, stderr: stderr, flags: flag.NewFlagSet("obdtool "+cmd.name, flag.ContinueOnError)}
	c.flags.SetOutput(stderr)
	c.flags.BoolVar(&c.json, "json", false, "print JSON")
	c.flags.Usage = func() {
		fmt.Fprintf(stderr, "usage: obdtool %s [flags] %s\n", cmd.name, cmd.args)
		c.flags.PrintDefaults()
	}
	return c
}

// parse reads flags, and returns the arguments behind them, of which there must be least to most; most -1: any number.
func (c *call) parse(args []string, least, most int) ([]string, error) {
	if err := c.flags.Parse(args); err != nil {
		if err == flag.ErrHelp {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	n := c.flags.NArg()
	if n < least || most >= 0 && n > most {
		return nil, usage("%d arguments, see obdtool %s -h", n, strings.TrimPrefix(c.flags.Name(), "obdtool "))
	}
	return c.flags.Args(), nil
}

func usage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errUsage, fmt.Sprintf(format, args...))
}

// print writes v as JSON if that is wanted, else what text makes of it, at once: output that is cut off fails.
func (c *call) print(v any, text func(w io.Writer)) error {
	if c.json {
		enc := json.NewEncoder(c.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	var b bytes.Buffer
	text(&b)
	_, err := c.stdout.Write(b.Bytes())
	return err
}

// width returns how many columns w has, and whether it is a terminal.
func width(w io.Writer) (columns int, terminal bool) {
	const plain = 80
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return plain, false
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns < 1 {
		return plain, true
	}
	return columns, true
}

// sizeFlag is a number of bytes, with K, M, G or T behind it for powers of 1024.
type sizeFlag int64

// String is the number.
func (s *sizeFlag) String() string { return strconv.FormatInt(int64(*s), 10) }

// Set reads it.
func (s *sizeFlag) Set(text string) error {
	digits, shift := strings.TrimSuffix(strings.ToUpper(text), "IB"), 0
	if i := strings.IndexAny("KMGT", last(digits)); i >= 0 {
		digits, shift = digits[:len(digits)-1], 10*(i+1)
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return lsmt.Invalid("size", fmt.Sprintf("%q", text), "a number of bytes, with K, M, G or T for powers of 1024")
	}
	*s = sizeFlag(n << shift)
	return nil
}

// last returns the last letter of s, or one that no unit has.
func last(s string) string {
	if s == "" {
		return "-"
	}
	return s[len(s)-1:]
}

func bytesText(n int64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(n), 0
	for ; f >= 1024 && i < len(units)-1; i++ {
		f /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}
