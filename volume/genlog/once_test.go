package genlog

import (
	"context"
	"errors"
	"testing"

	"github.com/sandvol/sandvol/volume/store"
)

func TestCreate(t *testing.T) {
	f := newFake()
	l := testLog(f)
	if _, err := l.Create(t.Context(), register{Owner: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Create(t.Context(), register{Owner: "b"}); !errors.Is(err, ErrExists) {
		t.Errorf("second create: %v, want ErrExists", err)
	}
	if g, err := l.Newest(t.Context()); err != nil || g.State.Owner != "a" {
		t.Errorf("owner %q, %v", g.State.Owner, err)
	}
}

func TestCreateWithoutAnAnswerIsInDoubt(t *testing.T) {
	f := newFake()
	f.after = once("put", func(string) error { return errLost })
	if _, err := testLog(f).Create(t.Context(), register{}); !errors.Is(err, ErrInDoubt) || !errors.Is(err, errLost) {
		t.Errorf("%v, want ErrInDoubt", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := testLog(newFake()).Create(cancelled, register{}); errors.Is(err, ErrInDoubt) || err == nil {
		t.Errorf("%v, want an error without doubt: nothing was sent", err)
	}
}

func TestCreateWhosePutTheClientRepeatedSucceeds(t *testing.T) {
	f := newFake()
	f.after = once("put", func(string) error { return store.ErrExists })
	if g, err := testLog(f).Create(t.Context(), register{}); err != nil || g.Number != 1 {
		t.Errorf("generation %d, %v", g.Number, err)
	}
}

func TestAppendNextIsOneShot(t *testing.T) {
	other := func(t *testing.T, f *fake, ops ...string) {
		for _, id := range ops {
			if _, err := testLog(f).Append(t.Context(), tagOp(id)); err != nil {
				t.Error(err)
			}
		}
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, f *fake)
		want    error
	}{
		"direct successor": {func(*testing.T, *fake) {}, nil},
		"slot taken":       {func(t *testing.T, f *fake) { other(t, f, "o") }, ErrSuperseded},
		"base far behind":  {func(t *testing.T, f *fake) { other(t, f, "o", "p", "q", "r") }, ErrSuperseded},
		"another builds on it before it is verified": {func(t *testing.T, f *fake) {
			f.after = once("put", func(string) error { other(t, f, "o", "p"); return nil })
		}, nil},
		"answer lost": {func(t *testing.T, f *fake) {
			f.after = once("put", func(string) error { return errLost })
		}, nil},
		"answer lost, and another builds on it": {func(t *testing.T, f *fake) {
			f.after = once("put", func(string) error { other(t, f, "o"); return errLost })
		}, nil},
		"client repeated the put": {func(t *testing.T, f *fake) {
			f.after = once("put", func(string) error { return store.ErrExists })
		}, nil},
		"no answer, and another takes the slot": {func(t *testing.T, f *fake) {
			f.before = once("put", func(string) error { other(t, f, "o"); return errLost })
		}, ErrSuperseded},
		"no answer, and no effect yet": {func(t *testing.T, f *fake) {
			f.before = once("put", func(string) error { return errLost })
		}, ErrInDoubt},
		"the verifying listing fails once": {func(t *testing.T, f *fake) {
			f.before = once("list", func(string) error { return errLost })
		}, nil},
		"the store fails after the put": {func(t *testing.T, f *fake) {
			f.before = func(kind, _ string) error {
				if kind == "list" {
					return errLost
				}
				return nil
			}
		}, ErrInDoubt},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			l, g := filled(t, f, 3)
			c.prepare(t, f)
			next, err := l.AppendNext(t.Context(), g, tagOp("mine"))
			if !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if err == nil && (next.Number != 4 || next.Previous != g.Nonce) {
				t.Errorf("generation %d after %q", next.Number, next.Previous)
			}
		})
	}
}

func TestAppendNextOfNoChangeSendsNothing(t *testing.T) {
	f := newFake()
	l, g := filled(t, f, 2)
	same := Op[register]{Name: "same", Apply: func(r register) (register, bool, error) { return r, false, nil }}
	if got, err := l.AppendNext(t.Context(), g, same); err != nil || got.Number != 2 || f.take() != "" {
		t.Errorf("generation %d, %v", got.Number, err)
	}
}
