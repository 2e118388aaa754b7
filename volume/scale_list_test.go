package volume_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
	"github.com/sandvol/sandvol/volume/store/posixstore"
	"github.com/sandvol/sandvol/volume/store/s3store/s3test"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// crowd gives put the records of n volumes of tenant "team" and returns their ids, in the order of their creation. They are
// copies of a real one that was renamed, forked and released: three generations each.
func crowd(t testing.TB, n int, put func(key, body string)) []string {
	t.Helper()
	const model = "01a22e96-6562-7d60-976f-25cfa52fb728"
	st := memstore.New()
	records := map[string]string{}
	r, err := volume.Open(t.Context(), volume.Config{Store: st, Dir: filepath.Join(t.TempDir(), "model"), Node: "model"},
		volume.Quiet, volume.WithFormatter(marker{}))
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.Tenant("team")
	if err != nil {
		t.Fatal(err)
	}
	v, err := m.Create(t.Context(), volume.CreateOptions{Size: volume.MinSize})
	if err == nil {
		_, err = m.Update(t.Context(), v.ID, volume.Update{Labels: &map[string]string{"project": "one"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range st.List(t.Context(), volumePrefix(m, v.ID), "", 0) {
		if err != nil {
			t.Fatal(err)
		}
		body, err := st.Get(t.Context(), e.Key)
		if err != nil {
			t.Fatal(err)
		}
		records[strings.ReplaceAll(e.Key, v.ID, model)] = strings.ReplaceAll(string(body), v.ID, model)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("01a22e96-%04x-7d60-976f-25cfa52fb728", i)
		for key, body := range records {
			put(strings.ReplaceAll(key, model, ids[i]), strings.ReplaceAll(body, model, ids[i]))
		}
	}
	return ids
}

// crowdedDir is a directory store with n volumes. They are at rest in it as posixstore describes, but were written without
// the wait for the disk.
func crowdedDir(t testing.TB, n int) (*posixstore.Store, []string) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "shared")
	ids := crowd(t, n, func(key, body string) {
		path := filepath.Join(root, key)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, []byte(body), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	st, err := posixstore.New(root)
	if err != nil {
		t.Fatal(err)
	}
	return st, ids
}

func listerOn(t testing.TB, st store.Store) *volume.Manager {
	t.Helper()
	r, err := volume.Open(t.Context(), volume.Config{Store: st, Dir: filepath.Join(t.TempDir(), "lister"), Node: "lister"},
		volume.Quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() }) // it has only read
	m, err := r.Tenant("team")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// BenchmarkListOnDirectory lists ten thousand volumes in a directory: less than 2 s is promised.
func BenchmarkListOnDirectory(b *testing.B) {
	st, ids := crowdedDir(b, 10_000)
	m := listerOn(b, st)
	b.ReportAllocs()
	for b.Loop() {
		all, err := storetest.Collect(m.List(b.Context(), volume.ListOptions{}))
		if err != nil || len(all) != len(ids) {
			b.Fatalf("%d volumes, %v", len(all), err)
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/list")
}

// A listing is read in pages that together are the whole: nothing twice, nothing missing, in the order of creation. A page
// costs what its own volumes cost, wherever it begins.
func TestPagesOfAListing(t *testing.T) {
	for name, open := range map[string]func(*testing.T, int) (store.Store, []string){
		"posix": func(t *testing.T, n int) (store.Store, []string) { return crowdedDir(t, n) },
		// A page of its own listings is 1000 keys.
		"s3": func(t *testing.T, n int) (store.Store, []string) {
			st := s3test.New(t).Open(t, "repo/")
			return st, crowd(t, n, func(key, body string) { ok(t, st.PutIfAbsent(t.Context(), key, []byte(body))) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st, ids := open(t, many(10_000, 1100))
			trace := storetest.Trace(st)
			m := listerOn(t, trace)
			const page = 150
			var got []string
			for after := ""; ; after = got[len(got)-1] {
				trace.Reset()
				listing := m.List(t.Context(), volume.ListOptions{After: after, Limit: page})
				volumes := must[[]volume.Volume](t)(storetest.Collect(listing))
				for _, v := range volumes {
					got = append(got, v.ID)
				}
				// The names, then a listing and a read a volume, in batches; and once what nodes say of themselves.
				if n := trace.Count(); n > 2*(page+64)+4 {
					t.Errorf("%d requests for a page after %q", n, after)
				}
				if len(volumes) < page {
					break
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(ids) {
				t.Errorf("%d volumes in pages, want %d in the order of their creation", len(got), len(ids))
			}
		})
	}
}
