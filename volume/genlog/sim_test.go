package genlog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/sandvol/sandvol/volume/store"
)

// The simulation runs actors over one store and stops each of them before every store call, so that a test chooses
// which call happens next and what becomes of it. Only one goroutine runs at a time.

var errLost = errors.New("no answer from the store")

// crashed is what an actor panics with when it is stopped for good.
type crashed struct{}

// chooser returns a number below n: rapid's draw, or a seeded generator's.
type chooser func(n int, what string) int

// outcome is what the scheduler makes of a call.
type outcome int

const (
	works       outcome = iota
	failsBefore         // error, no effect
	failsAfter          // effect, error
	landsLater          // put only: error, the effect may come at any later time
	repeats             // put only: the client sends twice and reports the second answer
)

// object is one successful put, kept even when it is deleted.
type object struct {
	key  string
	body []byte
}

type call struct {
	kind    string // put, list, get, delete
	effect  func() error
	answer  chan error
	landing *object
}

type actor struct {
	name  string
	calls chan *call // closed when the actor has finished
	next  *call
	// failure is what the actor panicked with: rapid stops a test that way, and it has to reach the test's goroutine.
	failure any
}

// wait lets the actor go on to its next call or its end.
func (a *actor) wait() {
	if a.next = <-a.calls; a.failure != nil {
		panic(a.failure)
	}
}

type world struct {
	choose  chooser
	objects map[string][]byte
	history []object
	late    []*object
	actors  []*actor
	onStep  func()
}

func newWorld(choose chooser) *world {
	return &world{choose: choose, objects: map[string][]byte{}}
}

// start runs f as an actor up to its first store call.
func (w *world) start(name string, f func(store.Store)) {
	a := &actor{name: name, calls: make(chan *call)}
	w.actors = append(w.actors, a)
	go func() {
		defer close(a.calls)
		defer func() {
			if p := recover(); p != (crashed{}) {
				a.failure = p
			}
		}()
		f(&view{w, a})
	}()
	a.wait()
}

// run lets actors go on, a call at a time, until all have finished. With faults it may break, delay and repeat calls,
// and stop up to `crashes` actors.
func (w *world) run(faults bool, crashes int) {
	for {
		w.actors = slices.DeleteFunc(w.actors, func(a *actor) bool { return a.next == nil })
		n := len(w.actors)
		if n == 0 {
			return
		}
		if i := w.choose(n+min(1, len(w.late)), "next"); i == n {
			w.land(w.choose(len(w.late), "late put"))
			continue
		} else if a := w.actors[i]; crashes > 0 && w.choose(40, "crash") == 0 {
			crashes--
			close(a.next.answer)
			a.next = <-a.calls
		} else {
			w.step(a, faults)
		}
	}
}

func (w *world) step(a *actor, faults bool) {
	o := works
	if faults {
		// Mostly nothing goes wrong: the index beyond the list means works.
		bad := []outcome{failsBefore}
		switch a.next.kind {
		case "put":
			bad = []outcome{failsBefore, failsAfter, landsLater, repeats}
		case "delete":
			bad = []outcome{failsAfter}
		}
		if i := w.choose(4*len(bad), "fault"); i < len(bad) {
			o = bad[i]
		}
	}
	var err error
	switch o {
	case works:
		err = a.next.effect()
	case failsBefore:
		err = errLost
	case failsAfter:
		_ = a.next.effect()
		err = errLost
	case landsLater:
		w.late = append(w.late, a.next.landing)
		err = errLost
	case repeats:
		_ = a.next.effect()
		err = a.next.effect()
	}
	a.next.answer <- err
	a.wait()
	if w.onStep != nil {
		w.onStep()
	}
}

// land makes one delayed put arrive.
func (w *world) land(i int) {
	o := w.late[i]
	w.late = slices.Delete(w.late, i, i+1)
	_ = w.put(*o)
}

// close stops every actor that still waits.
func (w *world) close() {
	for _, a := range w.actors {
		for a.next != nil {
			close(a.next.answer)
			a.next = <-a.calls
		}
	}
}

func (w *world) put(o object) error {
	if _, ok := w.objects[o.key]; ok {
		return store.ErrExists
	}
	w.objects[o.key] = o.body
	w.history = append(w.history, o)
	return nil
}

func (w *world) list(prefix string) []string {
	keys := slices.Sorted(maps.Keys(w.objects))
	return slices.DeleteFunc(keys, func(k string) bool { return !strings.HasPrefix(k, prefix) })
}

// view is the store as one actor sees it.
type view struct {
	*world
	a *actor
}

func (v *view) do(kind string, landing *object, effect func() error) error {
	c := &call{kind: kind, effect: effect, answer: make(chan error), landing: landing}
	v.a.calls <- c
	err, ok := <-c.answer
	if !ok {
		panic(crashed{})
	}
	return err
}

func (v *view) PutIfAbsent(_ context.Context, key string, body []byte) error {
	o := object{key, body}
	return v.do("put", &o, func() error { return v.put(o) })
}

func (v *view) Get(_ context.Context, key string) (body []byte, err error) {
	err = v.do("get", nil, func() error {
		var ok bool
		if body, ok = v.objects[key]; !ok {
			return store.ErrNotExist
		}
		return nil
	})
	return body, err
}

func (v *view) List(_ context.Context, prefix, after string, limit int) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		var keys []string
		if err := v.do("list", nil, func() error { keys = v.list(prefix); return nil }); err != nil {
			yield(store.Entry{}, err)
			return
		}
		for i, k := range keys {
			if k > after && (limit == 0 || i < limit) && !yield(store.Entry{Key: k}, nil) {
				return
			}
		}
	}
}

func (v *view) Delete(_ context.Context, key string) error {
	return v.do("delete", nil, func() error { delete(v.objects, key); return nil })
}

func (*view) Dirs(context.Context, string, string, int) iter.Seq2[string, error] { panic("not used") }
func (*view) PutBlob(context.Context, string, store.Source) error                { panic("not used") }
func (*view) OpenBlob(context.Context, string) (store.Blob, error)               { panic("not used") }

func (o object) String() string { return fmt.Sprintf("%s %s", o.key, o.body) }
