package volume_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// many is how many of something a test makes: with SANDVOL_SCALE=full as many as are promised, else few. It is the same test.
func many(full, few int) int {
	if os.Getenv("SANDVOL_SCALE") == "full" {
		return full
	}
	return few
}

// ten thousand sandboxes on four nodes mount one volume. None of them appends to its record, and the last mount
// takes as many requests as the first: it puts a key of its own and reads one record.
func TestMountsOfOneVolumeDoNotContend(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for a disk
	sandboxes := many(10_000, 300)
	w := newWorld(t)
	var nodes []*volume.Manager
	var traces []*storetest.TracedStore
	for i := range 4 {
		m, trace := w.traced(fmt.Sprint("n", i))
		nodes, traces = append(nodes, m), append(traces, trace)
	}
	v := readOnly(t, nodes[0], 'x')
	for _, m := range nodes {
		ok(t, m.Warm(t.Context(), v.ID))
	}
	requests := func(do func()) int {
		for _, trace := range traces {
			trace.Reset()
		}
		do()
		n := 0
		for _, trace := range traces {
			n += trace.Count()
		}
		return n
	}
	before := newestBody(t, w.st, volumePrefix(nodes[0], v.ID))
	readers := make([]*volume.Reader, sandboxes)
	first := requests(func() { readers[0] = pin(t, nodes[0], v.ID, "sb0") })
	all := requests(func() {
		var g errgroup.Group
		g.SetLimit(32)
		for i := 1; i < sandboxes-1; i++ {
			g.Go(func() (err error) {
				readers[i], err = nodes[i%4].Pin(t.Context(), v.ID, fmt.Sprint("sb", i))
				return err
			})
		}
		ok(t, g.Wait())
	})
	last := requests(func() { readers[sandboxes-1] = pin(t, nodes[3], v.ID, fmt.Sprint("sb", sandboxes-1)) })
	if first != 5 || last != first || all != first*(sandboxes-2) {
		t.Errorf("the first mount takes %d requests, the last %d, the %d between them %d", first, last, sandboxes-2, all)
	}
	if n := len(pinKeys(t, w, v)); n != sandboxes {
		t.Errorf("%d pins of %d sandboxes", n, sandboxes)
	}
	if newestBody(t, w.st, volumePrefix(nodes[0], v.ID)) != before {
		t.Error("the record changed")
	}
	var held *volume.InUseError
	if err := nodes[1].Delete(t.Context(), v.ID); !errors.As(err, &held) || len(held.Holders) == 0 {
		t.Errorf("deleted: %v", err)
	}
	releaseAll(t, readers)
	ok(t, nodes[2].Delete(t.Context(), v.ID))
}

func releaseAll(t *testing.T, readers []*volume.Reader) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(32)
	for _, r := range readers {
		if r != nil {
			g.Go(func() error { return r.Release(context.WithoutCancel(t.Context())) })
		}
	}
	ok(t, g.Wait())
}

// while thousands mount a volume, others delete it again and again. Each mount either holds the volume, with
// its pin in place and the data readable, or has failed because the volume is gone for good, and left no pin.
func TestDeletesThatRaceThousandsOfMountsLoseNoPin(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for a disk
	sandboxes := many(10_000, 300)
	for _, held := range []bool{true, false} {
		t.Run(fmt.Sprint("held before: ", held), func(t *testing.T) {
			w := newWorld(t)
			a, b, deleter := w.node("a"), w.node("b"), w.node("deleter")
			v := readOnly(t, a, 'x')
			ok(t, a.Warm(t.Context(), v.ID))
			ok(t, b.Warm(t.Context(), v.ID))
			readers := make([]*volume.Reader, sandboxes)
			if held {
				readers[0] = pin(t, a, v.ID, "sb0")
			}
			deleted := raceDeletes(t, deleter, v.ID, func() {
				var g errgroup.Group
				g.SetLimit(16)
				for i := range sandboxes {
					if readers[i] == nil {
						g.Go(func() (err error) {
							readers[i], err = []*volume.Manager{a, b}[i%2].Pin(t.Context(), v.ID, fmt.Sprint("sb", i))
							if errors.Is(err, volume.ErrNotFound) {
								err = nil
							}
							return err
						})
					}
				}
				ok(t, g.Wait())
			})
			checkPins(t, w, v, readers, deleted)
			if held && deleted {
				t.Error("deleted while it was mounted")
			}
			releaseAll(t, readers)
		})
	}
}

// raceDeletes deletes the volume again and again while do runs, and reports whether it is gone.
func raceDeletes(t *testing.T, m *volume.Manager, id string, do func()) (deleted bool) {
	t.Helper()
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() && !deleted {
			err := m.Delete(context.WithoutCancel(t.Context()), id)
			deleted = err == nil
			if err != nil && !errors.Is(err, volume.ErrInUse) && !errors.Is(err, volume.ErrUnavailable) {
				t.Errorf("delete: %v", err)
				return
			}
		}
	})
	do()
	stop.Store(true)
	wg.Wait()
	return deleted
}

// checkPins compares the pins in the store with the mounts that succeeded.
func checkPins(t *testing.T, w *world, v volume.Volume, readers []*volume.Reader, deleted bool) {
	t.Helper()
	pins := map[string]bool{}
	for _, key := range pinKeys(t, w, v) {
		pins[key[strings.LastIndexByte(key, '/')+1:]] = true
	}
	mounted := 0
	for i, r := range readers {
		if r == nil {
			continue
		}
		mounted++
		if !pins[r.Pin()] {
			t.Errorf("the pin of sandbox %d is lost", i)
		}
		if i%97 == 0 && at(t, r.Device(), 8192) != 'x' {
			t.Errorf("sandbox %d reads something else", i)
		}
	}
	if len(pins) != mounted {
		t.Errorf("%d pins of %d mounts", len(pins), mounted)
	}
	switch {
	case deleted && mounted > 0:
		t.Errorf("deleted under %d mounts", mounted)
	case !deleted && mounted != len(readers):
		t.Errorf("%d of %d mounts failed, and the volume is there", len(readers)-mounted, len(readers))
	}
}
