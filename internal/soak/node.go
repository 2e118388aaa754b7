package soak

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/posixstore"
)

// Sectors is how many sectors of a volume are written, one every stride bytes.
const Sectors = 64

const stride = 64 << 10

// Node is a repository in a directory, and this process's node on it.
type Node struct {
	Store *posixstore.Store
	Repo  *volume.Repository
	Team  *volume.Manager
	// Sessions are the volumes that the node has open, by id.
	Sessions map[string]*volume.Session
}

// Open opens the repository and node below dir, as a process does that starts for the first time or again.
func Open(ctx context.Context, dir string) (*Node, error) {
	st, err := posixstore.New(filepath.Join(dir, "shared"))
	if err != nil {
		return nil, err
	}
	// A device that seals by itself after so few segments does it in the middle of everything else.
	r, err := volume.Open(ctx, volume.Config{Store: st, Dir: filepath.Join(dir, "node"), Node: "node"},
		volume.WithFormatter(blank{}), volume.WithHeartbeat(0), volume.WithEngine(overlaybd.WithSealAt(40)))
	if err != nil {
		return nil, err
	}
	m, err := r.Tenant("team")
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &Node{Store: st, Repo: r, Team: m, Sessions: map[string]*volume.Session{}}, nil
}

// Close closes the node. What it has open stays its sandboxes'.
func (n *Node) Close() error { return n.Repo.Close() }

// blank is a Formatter of no file system at all: empty volumes read as zeroes.
type blank struct{}

func (blank) Version() string                                    { return "blank/1" }
func (blank) Check(context.Context) error                        { return nil }
func (blank) Format(_ context.Context, _ overlaybd.Device) error { return nil }

// sandboxOf names the one sandbox that ever holds a volume.
func sandboxOf(id string) string { return "sandbox-" + id }

// Recover goes through the node's journal as a host does that starts again: an attach that was not acknowledged is
// undone, a pause that had sealed is finished, and everything else is opened again.
func (n *Node) Recover(ctx context.Context) error {
	pending, bad := n.Repo.Journal()
	if err := errors.Join(bad...); err != nil {
		return err
	}
	for _, p := range pending {
		if err := n.recover(ctx, p); err != nil {
			return fmt.Errorf("recover %+v: %w", p, err)
		}
	}
	return nil
}

func (n *Node) recover(ctx context.Context, p volume.Pending) error {
	if p.Lost != "" {
		return errors.New("the volume was lost, and nobody took it")
	}
	if !p.Acquired {
		return n.Team.Undo(ctx, p.Volume, p.Sandbox)
	}
	s, err := n.Team.Reopen(ctx, p.Volume, p.Sandbox)
	if s == nil || err != nil {
		return err // nil: it was given back before the process died
	}
	cut, err := s.Pending(ctx)
	if err != nil {
		return err
	}
	if cut != nil {
		return s.Pause(ctx, cut)
	}
	n.Sessions[p.Volume] = s
	return nil
}

// write fills a sector with a number.
func write(dev io.WriterAt, sector int, number uint64) error {
	p := bytes.Repeat(binary.LittleEndian.AppendUint64(nil, number), overlaybd.SectorSize/8)
	_, err := dev.WriteAt(p, int64(sector)*stride)
	return err
}

// read returns the number in each sector.
func read(dev io.ReaderAt) (c Content, err error) {
	p := make([]byte, overlaybd.SectorSize)
	for i := range c {
		if _, err := dev.ReadAt(p, int64(i)*stride); err != nil {
			return c, err
		}
		c[i] = binary.LittleEndian.Uint64(p)
		if !bytes.Equal(p, bytes.Repeat(p[:8], len(p)/8)) {
			return c, fmt.Errorf("sector %d is torn", i)
		}
	}
	return c, nil
}
