package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"golang.org/x/term"
)

// step is one step that was done.
type step struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	// Stored and Fetched are bytes into the repository and out of it, records and layers.
	Stored  int64  `json:"stored"`
	Fetched int64  `json:"fetched"`
	Note    string `json:"note,omitempty"`
	cost    bool
}

// report is the line that -json prints.
type report struct {
	OK      bool    `json:"ok"`
	Error   string  `json:"error,omitempty"`
	Mode    string  `json:"mode"`
	Missing string  `json:"missing,omitempty"`
	Files   int     `json:"files"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Steps   []step  `json:"steps"`
}

// printer tells a person what happens, or a program what happened.
type printer struct {
	out      io.Writer
	json     bool
	terminal bool
	began    time.Time
	last     time.Time // when progress was last shown
	failed   error     // nobody reads any more
	report   report
}

func newPrinter(out io.Writer, json bool) *printer {
	p := &printer{out: out, json: json, began: time.Now(), report: report{Mode: "none", Steps: []step{}}}
	if f, ok := out.(*os.File); ok && !json {
		p.terminal = term.IsTerminal(int(f.Fd()))
	}
	return p
}

// printf prints for people.
func (p *printer) printf(format string, args ...any) {
	if !p.json && p.failed == nil {
		_, p.failed = fmt.Fprintf(p.out, format, args...)
	}
}

// begin prints what is going to be shown, and on what.
func (p *printer) begin(t *tree, missing string) {
	p.report.Mode, p.report.Missing = "file systems", missing
	p.report.Files, p.report.Bytes = t.files, t.bytes
	p.printf("A volume outlives its sandbox: two nodes, A and B, one repository.\n\n")
	p.printf("  tree   %s: %s files, %s\n", t.root, countText(t.files), bytesText(t.bytes))
	if t.skipped > 0 {
		p.printf("         without %d that are neither file, directory nor link\n", t.skipped)
	}
	if missing == "" {
		p.printf("  mode   ext4 file systems, on loop devices over FUSE\n\n")
		return
	}
	p.report.Mode = "blocks"
	p.printf("  mode   bare block devices: mounted file systems would need\n         %s\n\n", missing)
}

// The widths of a step's line.
const stepLine = "  %-40s %8s %12s %12s\n"

// start names a step that is under way, where a line can be rewritten.
func (p *printer) start(name string) {
	if len(p.report.Steps) == 0 {
		p.printf(stepLine, "", "time", "stored", "fetched")
	}
	if p.terminal {
		p.printf("  %s ...", name)
	}
}

// clear takes the unfinished line of a terminal away.
func (p *printer) clear() {
	if p.terminal {
		p.printf("\r\x1b[K")
	}
}

// progress shows how far a copy is, on a terminal and not too often.
func (p *printer) progress(files, of int, bytes int64) {
	if !p.terminal || time.Since(p.last) < 100*time.Millisecond {
		return
	}
	p.last = time.Now()
	p.clear()
	p.printf("  copying: %s of %s files, %s", countText(files), countText(of), bytesText(bytes))
}

func (p *printer) done(s step) {
	p.report.Steps = append(p.report.Steps, s)
	p.clear()
	p.printf(stepLine, s.Name, secondsText(s.Seconds), bytesText(s.Stored), bytesText(s.Fetched))
	if s.Note != "" {
		p.printf("      %s\n", s.Note)
	}
}

// end prints the table, or what went wrong. In JSON both are one line.
func (p *printer) end(err error) error {
	r := &p.report
	r.OK, r.Seconds = err == nil, time.Since(p.began).Seconds()
	if err != nil {
		r.Error = err.Error()
	}
	if p.json {
		return json.NewEncoder(p.out).Encode(r)
	}
	p.clear()
	if err != nil {
		p.printf("\nFailed after %s: %v\n", secondsText(r.Seconds), err)
		return nil
	}
	p.printf("\nWhat it cost, with %s in the volume:\n\n", bytesText(r.Bytes))
	if err := p.table(); err != nil {
		return err
	}
	p.printf("\nAll as it should be, in %s.\n", secondsText(r.Seconds))
	return nil
}

func (p *printer) table() error {
	w := tabwriter.NewWriter(p.out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "time\tstored\tfetched\t  \n")
	for _, s := range p.report.Steps {
		if s.cost {
			fmt.Fprintf(w, "%s\t%s\t%s\t  %s\n", secondsText(s.Seconds), bytesText(s.Stored), bytesText(s.Fetched), s.Name)
		}
	}
	return w.Flush()
}

func secondsText(s float64) string {
	switch {
	case s < 0.001:
		return "<1 ms"
	case s < 1:
		return fmt.Sprintf("%.0f ms", s*1000)
	}
	return fmt.Sprintf("%.1f s", s)
}

func bytesText(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// countText writes a number with a comma between each three digits.
func countText(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
