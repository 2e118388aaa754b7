// Command quickstart shows the main job on real data: a volume outlives its sandbox.
//
//	go run ./examples/quickstart [-json] [-tree DIR] [-dir DIR]
//
// It opens one repository from two nodes, A and B, creates a 64 GiB volume, copies a tree into it in a sandbox on A,
// and then pauses the sandbox, resumes it on B, forks it, snapshots, damages and restores it, shares it read-only, and
// deletes everything. Whenever the content should be the same, every file is compared by its sha256; at the end it
// shows that no layer, mount, loop device or process is left.
//
// As root on Linux, with /dev/fuse and loop devices, the sandboxes' drives are mounted file systems. Without
// them it says what is missing and does the same on bare block devices.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// options are what the command line says.
type options struct {
	tree   string // copied into the volume
	dir    string // kept; empty: a temporary directory, removed at the end
	json   bool
	blocks bool // bare block devices, whatever the machine can do
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the command; it returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&o.json, "json", false, "print one line of JSON and nothing else")
	flags.StringVar(&o.tree, "tree", "", "`directory` to copy into the volume (default: the Go standard library's source)")
	flags.StringVar(&o.dir, "dir", "", "new or empty `directory` to work in, which is kept (default: a temporary one)")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "quickstart: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	// The first signal ends the demonstration and cleans up; a second one ends the process. A reader that goes away, as in a
	// pipe into head, is seen as a failed write: dying of it would leave mounts behind.
	context.AfterFunc(ctx, stop)
	signal.Ignore(unix.SIGPIPE)

	p := newPrinter(stdout, o.json)
	err := demonstrate(ctx, o, p)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("interrupted: %w", err)
	}
	if err := p.end(err); err != nil {
		fmt.Fprintln(stderr, "quickstart:", err)
		return 1
	}
	if err != nil {
		return 1
	}
	return 0
}

// demonstrate prepares a directory and a tree, runs the steps, and cleans up whatever happened.
func demonstrate(ctx context.Context, o options, p *printer) (err error) {
	dir, remove, err := workDir(o.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	without := []string{dir}
	if o.tree == "" {
		if o.tree, err = standardLibrary(ctx); err != nil {
			return err
		}
		without = append(without, filepath.Join(o.tree, "cmd")) // the Go command, which is not part of it
	}
	tree, err := scan(ctx, o.tree, without)
	if err != nil {
		return err
	}
	missing := ""
	if o.blocks {
		missing = "not asked for"
	} else if missing, err = probe(ctx, dir); err != nil {
		return err
	}
	d, err := open(ctx, dir, tree, missing == "", p)
	if err != nil {
		return err
	}
	p.begin(tree, missing)
	err = d.steps(ctx)
	return errors.Join(err, d.close())
}

// workDir makes the directory for everything, and returns how to get rid of it.
func workDir(dir string) (string, func() error, error) {
	if dir != "" {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return "", nil, err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", nil, err
		}
		entries, err := os.ReadDir(dir)
		if err == nil && len(entries) > 0 {
			err = fmt.Errorf("directory %s: must be empty, holds %s", dir, entries[0].Name())
		}
		return dir, func() error { return nil }, err
	}
	dir, err := os.MkdirTemp("", "sandvol-quickstart-")
	if err != nil {
		return "", nil, err
	}
	return dir, func() error {
		// What is still mounted below must not be emptied file by file, or hang this process.
		if left, err := mountsBelow(dir); err != nil || len(left) > 0 {
			return errors.Join(err, fmt.Errorf("%s is kept: %d mounts are still in it", dir, len(left)))
		}
		return os.RemoveAll(dir)
	}, nil
}

// standardLibrary finds a tree of real files that everybody who runs this has.
func standardLibrary(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find the Go standard library, or name another tree with -tree: go env GOROOT: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "src"), nil
}
