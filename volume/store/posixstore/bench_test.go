package posixstore_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

func BenchmarkPutIfAbsent(b *testing.B) {
	s := open(b, b.TempDir())
	body := make([]byte, 2048)
	for i := 0; b.Loop(); i++ {
		must(b, s.PutIfAbsent(b.Context(), fmt.Sprintf("d/%d", i), body))
	}
}

// A record at rest has one link; with two, its writer may not be done, and Get syncs the directory.
func BenchmarkGet(b *testing.B) {
	for _, links := range []int{1, 2} {
		b.Run(fmt.Sprintf("links=%d", links), func(b *testing.B) {
			root := b.TempDir()
			s := open(b, root)
			must(b, s.PutIfAbsent(b.Context(), "d/e/key", make([]byte, 2048)))
			if links == 2 {
				must(b, os.Link(filepath.Join(root, "d/e/key"), filepath.Join(root, ".tmp/LINK")))
			}
			b.ReportAllocs()
			for b.Loop() {
				_, err := s.Get(b.Context(), "d/e/key")
				must(b, err)
			}
		})
	}
}

func BenchmarkReadRange(b *testing.B) {
	s := open(b, b.TempDir())
	must(b, s.PutBlob(b.Context(), "d/blob", store.BytesSource(make([]byte, 16<<20))))
	blob, err := s.OpenBlob(b.Context(), "d/blob")
	must(b, err)
	defer blob.Close()
	p := make([]byte, 256<<10)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_, err := blob.ReadRange(b.Context(), p, int64(i%64)*int64(len(p)))
		must(b, err)
	}
}

func BenchmarkList(b *testing.B) {
	const keys = 10_000
	s := open(b, b.TempDir())
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := g; i < keys; i += 16 {
				if err := s.PutIfAbsent(b.Context(), fmt.Sprintf("d/%06d", i), nil); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, limit := range []int{1, 0} {
		b.Run(fmt.Sprintf("keys=%d/limit=%d", keys, limit), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, err := storetest.Collect(s.List(b.Context(), "d/", "", limit))
				must(b, err)
			}
		})
	}
}
