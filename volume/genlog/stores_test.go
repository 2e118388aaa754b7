package genlog_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
	"github.com/sandvol/sandvol/volume/store/posixstore"
)

// add appends id to a list, once.
func add(id string) genlog.Op[[]string] {
	return genlog.Op[[]string]{Name: "add", Apply: func(ids []string) ([]string, bool, error) {
		if slices.Contains(ids, id) {
			return ids, false, nil
		}
		return append(slices.Clone(ids), id), true, nil
	}}
}

// Writers with a log of their own each, and a pruner, over the stores that people use: every op lands once.
func TestWritersRaceOverRealStores(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "repository")
	onDisk, err := posixstore.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, st := range map[string]store.Store{"memstore": memstore.New(), "posixstore": onDisk} {
		t.Run(name, func(t *testing.T) {
			var want []string
			var writers, pruning sync.WaitGroup
			background := func(job func(context.Context)) { pruning.Go(func() { job(t.Context()) }) }
			for w := range 4 {
				var ids []string
				for i := range 30 {
					ids = append(ids, fmt.Sprintf("%d-%d", w, i))
				}
				want = append(want, ids...)
				log := genlog.New[[]string](st, "v1/runs/", genlog.WithBackground(background), genlog.WithKeepWindow(0))
				writers.Go(func() {
					for _, id := range ids {
						if _, err := log.AppendOrCreate(t.Context(), add(id)); err != nil {
							t.Errorf("add %s: %v", id, err)
						}
					}
				})
			}
			writers.Wait()
			pruning.Wait()
			log := genlog.New[[]string](st, "v1/runs/", genlog.WithKeepWindow(0))
			newest, err := log.Newest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := slices.Sorted(slices.Values(newest.State))
			if slices.Sort(want); newest.Number != 120 || !slices.Equal(got, want) {
				t.Errorf("generation %d holds %d ids, want 120: %v", newest.Number, len(got), got)
			}
			if _, err := log.Prune(t.Context()); err != nil {
				t.Fatal(err)
			}
			left := 0
			for _, err := range st.List(t.Context(), "v1/runs/", "", 0) {
				if left++; err != nil {
					t.Fatal(err)
				}
			}
			if left != 64 {
				t.Errorf("%d generations left, want 64", left)
			}
		})
	}
}
