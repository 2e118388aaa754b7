package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"obdtool": func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// The scripts are what a user does. $GOLDEN, $LSMT and $ZFILE hold files that the reference's tools made.
func TestGoldenScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			for name, dir := range map[string]string{
				"GOLDEN": "testdata/golden", "LSMT": "lsmt/testdata/golden", "ZFILE": "zfile/testdata/golden",
			} {
				path, err := filepath.Abs(filepath.Join("..", "..", "overlaybd", dir))
				if err != nil {
					return err
				}
				env.Setenv(name, path)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"sha256": checkSum, "flip": flip, "status": wantStatus,
		},
	})
}

// checkSum compares the sha256 of a file: sha256 FILE HASH.
func checkSum(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: sha256 FILE HASH")
	}
	b, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	h := sha256.Sum256(b)
	if got := hex.EncodeToString(h[:]); (got == args[1]) == neg {
		ts.Fatalf("%s has sha256 %s", args[0], got)
	}
}

// flip changes a byte of a file: flip FILE OFFSET.
func flip(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: flip FILE OFFSET")
	}
	off, err := strconv.Atoi(args[1])
	ts.Check(err)
	path := ts.MkAbs(args[0])
	b, err := os.ReadFile(path)
	ts.Check(err)
	b[off] ^= 0x24
	ts.Check(os.WriteFile(path, b, 0o600))
}

// wantStatus runs the tool and compares its exit status: status N ARGS...
func wantStatus(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 1 {
		ts.Fatalf("usage: status N ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec("obdtool", args[1:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("status %d, want %d", got, want)
	}
}
