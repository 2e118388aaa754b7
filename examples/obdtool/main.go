// Command obdtool looks at, checks and makes OverlayBD layers: what the OverlayBD project's own tools create, commit,
// apply compression to, merge and resize, as far as they work on files.
//
//	obdtool inspect LAYER...                  what each file is: envelope, blocks, layer, disk
//	obdtool verify LAYER...                   read all of it, and name what is wrong and where
//	obdtool map LAYER...                      a picture of the disk: mapped, zeroes, absent
//	obdtool cat [-off N] [-len N] LAYER...    a range of the disk's bytes to standard output
//	obdtool diff -with LAYER,... LAYER...     ranges in which two disks may differ
//	obdtool flatten -o OUT LAYER...           several layers as one, or as a raw image
//	obdtool convert -o OUT FILE               another envelope, another compression, from and to raw images
//	obdtool mkfs -size N -o OUT               a layer with an empty ext4 file system
//	obdtool create -size N DATA INDEX         a new upper, empty
//	obdtool commit -o OUT DATA INDEX          an upper as a layer
//	obdtool seal DATA INDEX                   an upper as a layer, in place
//	obdtool resize -size N DATA INDEX         a larger disk for an upper
//
// LAYER is a file in any envelope, DATA,INDEX for an upper, or turbo:META,TARGET[,GZIPINDEX] for a TurboOCI layer. A
// stack is named bottom first, or by -config config.v1.json, as the OverlayBD project writes it. A new file is complete
// and durable, or not there. Each command has -h, and -json for programs.
//
// Unpacking an OCI layer into a file system (overlaybd-apply) is left to whoever handles images, and a file system in a
// resized disk is left to resize2fs.
//
// The exit status is 0 when all went well, 1 when something failed, 2 for a wrong command line or an argument outside
// its limits, 3 for corrupt data, and 4 when diff found a difference.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/zfile"
)

// Exit statuses.
const (
	exitDone = iota
	exitFailed
	exitUsage
	exitCorrupt
	exitDiffer
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	// The first signal lets the command take its unfinished files away; a second one ends it.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command is what the first argument names.
type command struct {
	name, args string
	run        func(c *call, args []string) error
}

func commands() []command {
	return []command{
		{"inspect", "LAYER...", inspect},
		{"verify", "LAYER...", verify},
		{"map", "LAYER...", drawMap},
		{"cat", "LAYER...", cat},
		{"diff", "-with LAYER,... LAYER...", diff},
		{"flatten", "-o OUT LAYER...", flatten},
		{"convert", "-o OUT FILE", convert},
		{"mkfs", "-size N -o OUT", mkfs},
		{"create", "-size N DATA INDEX", create},
		{"commit", "-o OUT DATA INDEX", commit},
		{"seal", "DATA INDEX", seal},
		{"resize", "-size N DATA INDEX", resize},
	}
}

// run is the tool; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	for _, cmd := range commands() {
		if cmd.name == name {
			c := newCall(ctx, cmd, stdout, stderr)
			return status(cmd.run(c, args[1:]), cmd.name, stderr)
		}
	}
	if name != "-h" && name != "-help" && name != "--help" {
		fmt.Fprintf(stderr, "obdtool: no command %q\n", name)
	}
	fmt.Fprintln(stderr, "usage:")
	for _, cmd := range commands() {
		fmt.Fprintf(stderr, "  obdtool %s [flags] %s\n", cmd.name, cmd.args)
	}
	if name == "-h" || name == "-help" || name == "--help" {
		return exitDone
	}
	return exitUsage
}

// errUsage: the command line is wrong, and the flag package or the command said how.
var errUsage = errors.New("wrong command line")

// errDiffer: diff found something. It has been printed.
var errDiffer = errors.New("the disks differ")

// status maps what a command returned to the exit status, by the class of the error.
func status(err error, name string, stderr io.Writer) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitDone
	case errors.Is(err, errDiffer):
		return exitDiffer
	}
	fmt.Fprintf(stderr, "obdtool %s: %v\n", name, err)
	switch {
	case errors.Is(err, errUsage), errors.Is(err, overlaybd.ErrInvalid), errors.Is(err, zfile.ErrInvalid):
		return exitUsage
	case errors.Is(err, overlaybd.ErrCorrupt), errors.Is(err, zfile.ErrCorrupt):
		return exitCorrupt
	}
	return exitFailed
}
