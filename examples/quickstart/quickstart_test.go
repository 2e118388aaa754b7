package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandvol/sandvol/mount"
)

// requireMounts ends the test unless this machine can mount file systems.
func requireMounts(t *testing.T) {
	t.Helper()
	missing, err := probe(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if missing == "" {
		return
	}
	if os.Getenv("SANDVOL_REQUIRE_REAL") == "1" {
		t.Fatalf("mounted file systems are required, missing: %s", missing)
	}
	t.Skipf("no mounted file systems, missing: %s", missing)
}

// smallTree is a tree with everything that a tree can have.
func smallTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for i := range 40 {
		name := filepath.Join(dir, fmt.Sprintf("d%d", i%5), fmt.Sprintf("f%d", i))
		check(t, os.MkdirAll(filepath.Dir(name), 0o755))
		check(t, os.WriteFile(name, bytes.Repeat([]byte(name), i*500), fs.FileMode(0o444+i%2*0o200)))
	}
	check(t, os.Mkdir(filepath.Join(dir, "empty"), 0o755))
	check(t, os.Symlink("d1/f1", filepath.Join(dir, "link")))
	check(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	return dir
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// watchLeaks fails the test if it leaves a goroutine, a temporary file, a mount, a loop device or a process behind.
func watchLeaks(t *testing.T) {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	t.Cleanup(func() {
		goleak.VerifyNone(t, leaks)
		if left, err := leftBehind(tmp); err != nil || len(left) > 0 {
			t.Errorf("left behind: %q, %v", left, err)
		}
		if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
			t.Errorf("left in the temporary directory: %v, %v", left, err)
		}
	})
}

// wantSteps fails unless the report is of a whole run, and what moves no data has moved none.
func wantSteps(t *testing.T, output []byte, mode string) {
	t.Helper()
	var r report
	lines := bytes.Split(bytes.TrimSpace(output), []byte("\n"))
	check(t, json.Unmarshal(lines[len(lines)-1], &r))
	if !r.OK || r.Mode != mode || r.Files != 40 {
		t.Errorf("report is %s", output)
	}
	if got, want := len(r.Steps), len((&demo{a: &node{}, b: &node{}, content: &files{}}).script()); got != want {
		t.Errorf("%d steps were done, want %d", got, want)
	}
	const metadata = 64 << 10
	for _, s := range r.Steps {
		free := []string{"create another one", "fork sandbox-1", "make an ro volume of the snapshot"}
		if slices.Contains(free, s.Name) && s.Stored+s.Fetched > metadata {
			t.Errorf("%s moved %d bytes into the repository and %d out of it", s.Name, s.Stored, s.Fetched)
		}
	}
}

// the main job on mounted file systems, with every file compared by
// its sha256 wherever the content should be the same.
func TestMainJobOnMountedFileSystems(t *testing.T) {
	requireMounts(t)
	watchLeaks(t)
	var stdout, stderr bytes.Buffer
	if status := run([]string{"-json", "-tree", smallTree(t)}, &stdout, &stderr); status != 0 {
		t.Fatalf("status %d\n%s%s", status, &stdout, &stderr)
	}
	wantSteps(t, stdout.Bytes(), "file systems")
}

// the same without any rights.
func TestMainJobOnBareBlockDevices(t *testing.T) {
	watchLeaks(t)
	var out bytes.Buffer
	p := newPrinter(&out, true)
	check(t, demonstrate(t.Context(), options{tree: smallTree(t), blocks: true}, p))
	check(t, p.end(nil))
	wantSteps(t, out.Bytes(), "blocks")
}

func TestOutputForPeopleShowsWhatCountsAndANamedDirectoryIsKept(t *testing.T) {
	watchLeaks(t)
	var out bytes.Buffer
	p := newPrinter(&out, false)
	dir := filepath.Join(t.TempDir(), "kept")
	check(t, demonstrate(t.Context(), options{tree: smallTree(t), dir: dir, blocks: true}, p))
	check(t, p.end(nil))
	if _, err := os.Stat(filepath.Join(dir, "repository", "v1", "volumes", tenant)); err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		"held by sandbox-1 on node A", "device is read-only", "What it cost", "0 layers, 0 mounts", "All as it should be",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the output:\n%s", want, &out)
		}
	}
}

// interrupter cancels when a text is printed.
type interrupter struct {
	bytes.Buffer
	text   string
	cancel context.CancelFunc
}

func (i *interrupter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(i.text)) {
		i.cancel()
	}
	return i.Buffer.Write(p)
}

func TestInterruptionLeavesNothingBehind(t *testing.T) {
	tree := smallTree(t)
	for _, step := range []string{"copy the tree into it", "pause sandbox-1", "restore the snapshot", "delete sandboxes"} {
		t.Run(step, func(t *testing.T) {
			watchLeaks(t)
			missing, err := probe(t.Context(), t.TempDir())
			check(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			out := &interrupter{text: step, cancel: cancel}
			p := newPrinter(out, false)
			p.terminal = true // a step is named when it begins
			err = demonstrate(ctx, options{tree: tree, blocks: missing != ""}, p)
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("error is %v\n%s", err, out)
			}
		})
	}
}

func TestWrongArgumentsAreNamed(t *testing.T) {
	watchLeaks(t)
	full, empty := t.TempDir(), t.TempDir()
	check(t, os.WriteFile(filepath.Join(full, "mine"), nil, 0o600))
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"-json", "-tree", filepath.Join(empty, "absent")}, 1, "no such file or directory"},
		{[]string{"-json", "-tree", empty}, 1, "no file in"},
		{[]string{"-json", "-tree", full, "-dir", full}, 1, "must be empty, holds mine"},
		{[]string{"extra"}, 2, `unexpected argument "extra"`},
		{[]string{"-nonsense"}, 2, "-nonsense"},
	} {
		var stdout, stderr bytes.Buffer
		status := run(c.args, &stdout, &stderr)
		if status != c.status || !strings.Contains(stdout.String()+stderr.String(), c.want) {
			t.Errorf("%q: status %d, output %s%s", c.args, status, &stdout, &stderr)
		}
		if status == 1 && !strings.Contains(stdout.String(), `"ok":false`) {
			t.Errorf("%q: output %s", c.args, &stdout)
		}
	}
}

func TestProofFindsEveryDifference(t *testing.T) {
	tree, err := scan(t.Context(), smallTree(t), nil)
	check(t, err)
	for name, change := range map[string]func(top string) error{
		"changed":  func(top string) error { return os.WriteFile(filepath.Join(top, "d1", "f1"), []byte("x"), 0o644) },
		"missing":  func(top string) error { return os.Remove(filepath.Join(top, "d2", "f2")) },
		"added":    func(top string) error { return os.WriteFile(filepath.Join(top, "new"), nil, 0o644) },
		"link":     func(top string) error { return relink(filepath.Join(top, "link")) },
		"no empty": func(top string) error { return os.Remove(filepath.Join(top, "empty")) },
	} {
		t.Run(name, func(t *testing.T) {
			f := files{tree: tree, print: newPrinter(&bytes.Buffer{}, true)}
			d := mount.Drive{Target: t.TempDir()}
			_, err := f.fill(t.Context(), d)
			check(t, err)
			_, err = f.prove(t.Context(), d)
			check(t, err)
			check(t, change(top(d)))
			var differs *differenceError
			if _, err := f.prove(t.Context(), d); !errors.As(err, &differs) {
				t.Errorf("the proof says %v", err)
			}
		})
	}
}

func relink(name string) error {
	return errors.Join(os.Remove(name), os.Symlink("elsewhere", name))
}
