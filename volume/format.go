package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/journal"
	"github.com/sandvol/sandvol/volume/store"
)

// formatNumber is the repository format that this version reads and writes. It only rises; a version reads the one before.
const formatNumber = 1

// formatState is the state of the format log.
type formatState struct {
	Repository string         `json:"repository"`
	MinReader  int            `json:"minReader"`
	MinWriter  int            `json:"minWriter"`
	Since      time.Time      `json:"since"`
	Extra      jsontext.Value `json:",embed"`
}

// The repository's id is made with its first generation. A node remembers it, so that it never takes another repository, such
// as the empty one that it would find in a directory that is not mounted, for its own.
const repositoryFile = "repository"

// formatGate refuses appends once the repository asks for a newer writer.
type formatGate struct {
	log       *genlog.Log[formatState]
	minWriter atomic.Int64
}

func newFormatGate(st store.Store, clock func() time.Time) *formatGate {
	return &formatGate{log: genlog.New[formatState](st, formatPrefix, genlog.WithClock(clock))}
}

// establish creates the format's first generation, or reads the newest one and checks that this version may read it and that
// it is of the repository that the node's directory belongs to.
func (g *formatGate) establish(ctx context.Context, now time.Time, dir string) error {
	known, err := os.ReadFile(filepath.Join(dir, repositoryFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	fresh := err != nil
	gen, err := g.log.AppendOrCreate(ctx, genlog.Op[formatState]{Name: "format",
		Apply: func(s formatState) (formatState, bool, error) {
			if s.MinReader > 0 {
				return s, false, nil
			}
			if !fresh {
				return s, false, otherRepository(dir, string(known), "an empty one")
			}
			return formatState{Repository: newNonce(), MinReader: formatNumber, MinWriter: formatNumber, Since: now}, true, nil
		}})
	if err != nil {
		return fmt.Errorf("read the repository's format: %w", err)
	}
	switch id := gen.State.Repository; {
	case fresh:
		if err := journal.ReplaceFile(filepath.Join(dir, repositoryFile), []byte(id)); err != nil {
			return err
		}
	case id != string(known):
		return otherRepository(dir, string(known), id)
	}
	return g.accept(gen.State)
}

func otherRepository(dir, known, found string) error {
	return fmt.Errorf("%w: directory %s belongs to repository %s, and the store holds %s: is the right one mounted?",
		ErrUnavailable, dir, known, found)
}

func (g *formatGate) accept(s formatState) error {
	g.minWriter.Store(int64(s.MinWriter))
	if s.MinReader > formatNumber {
		return fmt.Errorf("%w: the repository needs a reader of format %d, this version is %d",
			ErrUnsupported, s.MinReader, formatNumber)
	}
	return nil
}

// check is asked before each append.
func (g *formatGate) check(context.Context) error {
	if min := g.minWriter.Load(); min > formatNumber {
		return fmt.Errorf("%w: the repository needs a writer of format %d, this version is %d",
			ErrUnsupported, min, formatNumber)
	}
	return nil
}

// refresh reads the format again, so that a node that runs for months learns of an upgrade.
func (g *formatGate) refresh(ctx context.Context) {
	// An error changes nothing: what was last known stays in force until the store answers.
	if gen, err := g.log.Newest(ctx); err == nil {
		_ = g.accept(gen.State) // a reader that is too old is also a writer that is too old: check refuses
	}
}
