package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sandvol/sandvol/volume/store"
)

// Cross is one half of a check that two nodes make together of a store that they share: a directory on NFS, mounted with
// the options that are to be used, or a bucket. Both run it at the same time, with the same Run.
type Cross struct {
	Store store.Store
	// Run is a name that was never used before on this store, up to 64 characters of A-Z a-z 0-9 _ -.
	Run string
	// Rounds is how often everything is tried; 0 is 200.
	Rounds int
	// Wait is how long the other node may take for a step; 0 is 30 s.
	Wait time.Duration
}

// CrossError says what two nodes saw of a store that no store may show.
type CrossError struct {
	Round int
	Fault string
	Key   string
}

func (e *CrossError) Error() string {
	return fmt.Sprintf("this store cannot be shared: round %d: %s: %s. On NFS, mount with lookupcache=none,actimeo=0 (or noac) "+
		"on every node; with a bucket, see that no cache is in front", e.Round, e.Key, e.Fault)
}

// CrossCheck runs one half. It returns nil when both nodes saw the same winners, each other's writes as soon as they were
// finished, and no blob in part; a *CrossError when the store is not fit; and any other error when the check could not be
// completed. What it wrote, below "crosscheck/", is removed by the half that came first, unless there was an error.
func CrossCheck(ctx context.Context, c Cross) error {
	if c.Rounds == 0 {
		c.Rounds = 200
	}
	if c.Wait == 0 {
		c.Wait = 30 * time.Second
	}
	if !store.ValidSegment(c.Run) || len(c.Run) > 64 {
		return fmt.Errorf("%w: run %q: must be 1 to 64 characters of A-Z a-z 0-9 _ -", store.ErrInvalidKey, c.Run)
	}
	h := &half{Cross: c}
	if err := h.sit(ctx); err != nil {
		return err
	}
	if err := h.rounds(ctx); err != nil {
		return err
	}
	if h.seat == "b" {
		return h.say(ctx, "end")
	}
	if err := h.hear(ctx, "end"); err != nil {
		return err
	}
	return h.clean(ctx)
}

// half is one of two nodes.
type half struct {
	Cross
	seat, other string
	round       int
}

func (h *half) key(name string) string {
	return fmt.Sprintf("crosscheck/%s/%06d/%s", h.Run, h.round, name)
}

// sit finds out which half this is: the first to come is a.
func (h *half) sit(ctx context.Context) error {
	for _, seats := range [][2]string{{"a", "b"}, {"b", "a"}} {
		err := h.Store.PutIfAbsent(ctx, h.key("seat-"+seats[0]), nil)
		if err == nil {
			h.seat, h.other = seats[0], seats[1]
			return nil
		}
		if !errors.Is(err, store.ErrExists) {
			return fmt.Errorf("crosscheck: %w", err)
		}
	}
	return fmt.Errorf("crosscheck: run %q was used before: %w", h.Run, store.ErrExists)
}

func (h *half) rounds(ctx context.Context) error {
	for h.round = 1; h.round <= h.Rounds; h.round++ {
		for _, step := range []func(context.Context) error{h.race, h.see, h.forget, h.blob} {
			if err := step(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *half) fault(key, format string, args ...any) error {
	return &CrossError{Round: h.round, Key: key, Fault: fmt.Sprintf(format, args...)}
}

// say tells the other half that this one has come to a point, with something about it.
func (h *half) say(ctx context.Context, point string, what ...byte) error {
	return h.Store.PutIfAbsent(ctx, h.key(point+"-"+h.seat), what)
}

// told waits until the other half has come to a point, and returns what it said.
func (h *half) told(ctx context.Context, point string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, h.Wait)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		b, err := h.Store.Get(ctx, h.key(point+"-"+h.other))
		if err == nil || !errors.Is(err, store.ErrNotExist) {
			return b, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("crosscheck: round %d: the other node has not come to %q in %v: %w", h.round, point, h.Wait, ctx.Err())
		case <-time.After(pause):
		}
	}
}

func (h *half) hear(ctx context.Context, point string) error {
	_, err := h.told(ctx, point)
	return err
}

// race has both halves create one key at once: one may win.
func (h *half) race(ctx context.Context) error {
	if err := h.say(ctx, "ready"); err != nil {
		return err
	}
	if err := h.hear(ctx, "ready"); err != nil {
		return err
	}
	err := h.Store.PutIfAbsent(ctx, h.key("slot"), []byte(h.seat))
	if err != nil && !errors.Is(err, store.ErrExists) {
		return err
	}
	mine := []byte("lost")
	if err == nil {
		mine = []byte("won")
	}
	if err := h.say(ctx, "result", mine...); err != nil {
		return err
	}
	theirs, err := h.told(ctx, "result")
	if err != nil {
		return err
	}
	if bytes.Equal(mine, theirs) {
		return h.fault(h.key("slot"), "both nodes %s the race for one key", mine)
	}
	winner := h.seat
	if string(mine) == "lost" {
		winner = h.other
	}
	// The other has said so after it wrote: whoever hears it sees the write.
	got, err := h.Store.Get(ctx, h.key("slot"))
	if err != nil || string(got) != winner {
		return h.fault(h.key("slot"), "holds %q, %v, after %q had won the race", got, err, winner)
	}
	return nil
}

// see lists what both have finished writing.
func (h *half) see(ctx context.Context) error {
	missing := map[string]bool{}
	for _, name := range []string{"ready-a", "ready-b", "result-a", "result-b", "slot"} {
		missing[h.key(name)] = true
	}
	for e, err := range h.Store.List(ctx, h.key(""), "", 0) {
		if err != nil {
			return err
		}
		delete(missing, e.Key)
	}
	for key := range missing {
		return h.fault(key, "written, and not in a listing that began afterwards")
	}
	return nil
}

// forget has one half delete what both know, and the other look for it.
func (h *half) forget(ctx context.Context) error {
	if h.seat == "a" {
		if err := h.hear(ctx, "seen"); err != nil {
			return err
		}
		if err := h.Store.Delete(ctx, h.key("slot")); err != nil {
			return err
		}
		return h.say(ctx, "deleted")
	}
	if err := h.say(ctx, "seen"); err != nil {
		return err
	}
	if err := h.hear(ctx, "deleted"); err != nil {
		return err
	}
	if _, err := h.Store.Get(ctx, h.key("slot")); !errors.Is(err, store.ErrNotExist) {
		return h.fault(h.key("slot"), "deleted, and read afterwards: %v", err)
	}
	for e, err := range h.Store.List(ctx, h.key(""), "", 0) {
		if err != nil {
			return err
		}
		if e.Key == h.key("slot") {
			return h.fault(e.Key, "deleted, and in a listing that began afterwards")
		}
	}
	return nil
}

// crossBlob is the size of a blob that one half writes while the other reads, in bytes.
const crossBlob = 1<<20 + 1

// blob has one half write a blob while the other tries to read it: it is there whole, or not at all.
func (h *half) blob(ctx context.Context) error {
	want := bytes.Repeat([]byte{byte(h.round)}, crossBlob)
	key := h.key("blob")
	if h.seat == "b" {
		if err := h.Store.PutBlob(ctx, key, store.BytesSource(want)); err != nil {
			return err
		}
		return h.say(ctx, "uploaded")
	}
	for {
		_, err := h.Store.Get(ctx, h.key("uploaded-b"))
		if err != nil && !errors.Is(err, store.ErrNotExist) {
			return err
		}
		uploaded := err == nil
		got, err := h.readBlob(ctx, key)
		switch {
		case errors.Is(err, store.ErrNotExist) && uploaded:
			return h.fault(key, "uploaded, and not there afterwards")
		case err != nil && !errors.Is(err, store.ErrNotExist):
			return err
		case err == nil && !bytes.Equal(got, want):
			return h.fault(key, "seen with %d bytes of %d, or with others", len(got), crossBlob)
		case err == nil && uploaded:
			return nil
		}
	}
}

func (h *half) readBlob(ctx context.Context, key string) (_ []byte, err error) {
	b, err := h.Store.OpenBlob(ctx, key)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	p := make([]byte, crossBlob+1)
	n, err := b.ReadRange(ctx, p, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return p[:n], err
}

// clean removes what the halves wrote, when both are done.
func (h *half) clean(ctx context.Context) error {
	var keys []string
	for e, err := range h.Store.List(ctx, "crosscheck/"+h.Run+"/", "", 0) {
		if err != nil {
			return err
		}
		keys = append(keys, e.Key)
	}
	for _, k := range keys {
		if err := h.Store.Delete(ctx, k); err != nil {
			return err
		}
	}
	return nil
}
