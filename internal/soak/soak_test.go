package soak

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"go.uber.org/goleak"
)

// liveEnv makes the test binary live over a directory: its value is "<seed> <last number> <directory>".
const liveEnv = "SANDVOL_SOAK_LIVE"

func TestMain(m *testing.M) {
	if life := os.Getenv(liveEnv); life != "" {
		var seed, last uint64
		var dir string
		_, err := fmt.Sscan(life, &seed, &last, &dir)
		if err == nil {
			err = Live(context.Background(), dir, seed, last, os.Stdout)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// kills is how often the process is killed: 200 times are promised.
func kills(t *testing.T) int {
	t.Helper()
	text := os.Getenv("SANDVOL_SOAK_KILLS")
	if text == "" {
		return 10
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("SANDVOL_SOAK_KILLS: %v", err)
	}
	return n
}

// A-173, I3, I4, I11, I13: a process is killed at any moment, again and again, over one repository. No write, flush or
// publish that it acknowledged is lost, no volume is there that nobody made, and no layer, journal entry or directory is
// left that nothing accounts for.
//
// SANDVOL_SOAK_KILLS says how often, SANDVOL_SOAK_SEED repeats a run up to the moments of the kills.
func TestNothingAcknowledgedIsLostWhenTheProcessIsKilled(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("SANDVOL_SOAK_SEED"); text != "" {
		if _, err := fmt.Sscan(text, &seed); err != nil {
			t.Fatalf("SANDVOL_SOAK_SEED: %v", err)
		}
	}
	t.Logf("SANDVOL_SOAK_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	var l Ledger
	done := map[Op]int{}
	for i := range kills(t) {
		events := liveAndDie(t, dir, r.Uint64(), l.Last, r)
		for _, e := range events {
			l.Note(e)
			if e.Done {
				done[e.Op]++
			}
		}
		last := events[max(0, len(events)-3):]
		if err := check(t.Context(), dir, &l); err != nil {
			t.Fatalf("kill %d, after %+v: %v", i, last, err)
		}
	}
	t.Logf("acknowledged: %v; volumes: %d", done, len(l.Volumes()))
	if done[Write] == 0 || done[Attach] == 0 {
		t.Error("nothing was written")
	}
}

// check recovers, and compares what is there with the ledger.
func check(ctx context.Context, dir string, l *Ledger) (err error) {
	n, err := Open(ctx, dir)
	if err != nil {
		return err
	}
	defer func() {
		if closed := n.Close(); err == nil {
			err = closed
		}
	}()
	if err := n.Recover(ctx); err != nil {
		return err
	}
	found, err := n.Inspect(ctx)
	if err != nil {
		return err
	}
	if wrong := l.Settle(found); len(wrong) > 0 {
		return fmt.Errorf("%d things are wrong: %w", len(wrong), wrong[0])
	}
	return n.Account(ctx)
}

// liveAndDie runs a process, kills it at a moment that nothing in it chooses, and returns all that it said.
func liveAndDie(t *testing.T, dir string, seed, last uint64, r *rand.Rand) (events []Event) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %s", liveEnv, seed, last, dir))
	var failure strings.Builder
	cmd.Stderr = &failure
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // a test that fails early leaves nothing running
	// So many lines, and then so long: neither alone would hit both a short operation and one that takes its time.
	lines, wait := 1+r.IntN(400), time.Duration(r.IntN(3000))*time.Microsecond
	in := bufio.NewReader(out)
	for n := 0; ; n++ {
		if n == lines {
			time.AfterFunc(wait, func() { _ = cmd.Process.Kill() }) // it may have ended already
		}
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			break // a line that was cut short was not said
		}
		if err != nil {
			t.Fatal(err)
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		events = append(events, e)
	}
	_ = cmd.Wait() // the error is that it was killed
	if failure.Len() > 0 {
		t.Fatalf("the process failed by itself: %s", failure.String())
	}
	return events
}
