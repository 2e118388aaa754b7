package soak

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
)

// Op is what the process does to a volume.
type Op string

// The operations. Recover stands for all that a process does before it goes on.
const (
	Recover Op = "recover"
	Create  Op = "create"
	Fork    Op = "fork"
	Attach  Op = "attach"
	Write   Op = "write"
	Flush   Op = "flush"
	Publish Op = "publish"
	Pause   Op = "pause"
	Release Op = "release"
	Delete  Op = "delete"
	Collect Op = "collect"
)

// Event is said twice of each operation: before it is begun, and with Done when it was acknowledged. Made is the volume
// that it has made.
type Event struct {
	Op     Op     `json:"op"`
	Volume string `json:"volume,omitzero"`
	Sector int    `json:"sector,omitzero"`
	Number uint64 `json:"number,omitzero"`
	Made   string `json:"made,omitzero"`
	Done   bool   `json:"done,omitzero"`
}

// maxVolumes bounds how many volumes there are at a time.
const maxVolumes = 6

// life is one process's.
type life struct {
	*Node
	out  io.Writer
	rand *rand.Rand
	next uint64 // number to write
}

// Live recovers and then does random things for ever, or until something fails. Numbers that are written come after last.
// What it says goes to out, in the order in which it happens.
func Live(ctx context.Context, dir string, seed, last uint64, out io.Writer) error {
	l := &life{out: out, rand: rand.New(rand.NewPCG(seed, last)), next: last}
	err := l.do(Event{Op: Recover}, func() (string, error) {
		var err error
		if l.Node, err = Open(ctx, dir); err != nil {
			return "", err
		}
		return "", l.Recover(ctx)
	})
	for err == nil {
		err = l.step(ctx)
	}
	return err
}

func (l *life) do(e Event, f func() (made string, err error)) (err error) {
	if err = l.say(e); err != nil {
		return err
	}
	if e.Made, err = f(); err != nil {
		return fmt.Errorf("%s %s: %w", e.Op, e.Volume, err)
	}
	e.Done = true
	return l.say(e)
}

func (l *life) say(e Event) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = l.out.Write(append(line, '\n'))
	return err
}

// step does one thing to a volume that is open, or to one that is not.
func (l *life) step(ctx context.Context) error {
	open := slices.Sorted(maps.Keys(l.Sessions))
	if len(open) > 0 && l.rand.IntN(8) > 0 {
		return l.use(ctx, open[l.rand.IntN(len(open))])
	}
	var all []volume.Volume
	for v, err := range l.Team.List(ctx, volume.ListOptions{}) {
		if err != nil {
			return err
		}
		all = append(all, v)
	}
	if len(all) == 0 {
		return l.create(ctx)
	}
	v := all[l.rand.IntN(len(all))]
	room := len(all) < maxVolumes
	switch p := l.rand.IntN(8); {
	case p == 0 && room:
		return l.create(ctx)
	case p == 1 && room:
		return l.do(Event{Op: Fork, Volume: v.ID}, func() (string, error) {
			child, err := l.Team.Fork(ctx, v.ID, volume.ForkOptions{})
			return child.ID, err
		})
	case p == 2 && v.Reservation.Phase == reservation.Free && !room:
		return l.do(Event{Op: Delete, Volume: v.ID}, func() (string, error) { return "", l.Team.Delete(ctx, v.ID) })
	case p == 3:
		return l.do(Event{Op: Collect}, func() (string, error) {
			_, err := l.Repo.Collect(ctx, volume.CollectOptions{MinAge: new(time.Duration), TakeOver: true})
			return "", err
		})
	case l.Sessions[v.ID] == nil:
		return l.do(Event{Op: Attach, Volume: v.ID}, func() (string, error) {
			s, err := l.Team.Attach(ctx, v.ID, sandboxOf(v.ID))
			l.Sessions[v.ID] = s
			return "", err
		})
	}
	return nil
}

func (l *life) create(ctx context.Context) error {
	return l.do(Event{Op: Create}, func() (string, error) {
		v, err := l.Team.Create(ctx, volume.CreateOptions{Size: volume.MinSize})
		return v.ID, err
	})
}

// use does one thing to a volume that is open. Most are writes.
func (l *life) use(ctx context.Context, id string) error {
	s := l.Sessions[id]
	switch p := l.rand.IntN(40); {
	case p == 0:
		return l.end(ctx, Event{Op: Pause, Volume: id}, s.Pause)
	case p == 1:
		return l.end(ctx, Event{Op: Release, Volume: id}, s.Release)
	case p < 4:
		return l.do(Event{Op: Publish, Volume: id}, func() (string, error) {
			c, err := s.Seal(ctx, volume.NewCut(volume.Crash, false))
			if err != nil {
				return "", err
			}
			return "", s.Publish(ctx, c)
		})
	case p < 8:
		return l.do(Event{Op: Flush, Volume: id}, func() (string, error) { return "", s.Device().Flush() })
	}
	l.next++
	e := Event{Op: Write, Volume: id, Sector: l.rand.IntN(Sectors), Number: l.next}
	return l.do(e, func() (string, error) { return "", write(s.Device(), e.Sector, e.Number) })
}

func (l *life) end(ctx context.Context, e Event, how func(context.Context, *volume.Sealed) error) error {
	return l.do(e, func() (string, error) {
		c, err := l.Sessions[e.Volume].Seal(ctx, volume.NewCut(volume.Clean, true))
		if err != nil {
			return "", err
		}
		delete(l.Sessions, e.Volume)
		return "", how(ctx, c)
	})
}
