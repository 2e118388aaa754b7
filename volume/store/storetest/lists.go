package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/volume/store"
)

func listOrder(t *testing.T, s suite) {
	// In byte order '-' < '.' < '/' < '0' < 'A' < '_' < 'a': a file system that sorts names, not keys, gets this wrong.
	want := []string{
		"B", "a-b/x", "a-b/y", "a.b", "a/x", "a/x-1", "a/x.2", "a/x0", "a0/x", "aB", "a_", "aa/b/c", "b",
	}
	shuffled := slices.Clone(want)
	slices.Reverse(shuffled)
	s.put(s.a, shuffled...)
	s.both(func(h store.Store) { s.wantKeys(h, "", "", 0, want...) })
	for i := range want {
		s.wantKeys(s.a, "", want[i], 0, slices.Clip(want[i+1:])...)
		s.wantKeys(s.a, "", "", i+1, want[:i+1]...)
	}
}

func listRules(t *testing.T, s suite) {
	s.put(s.a, "p/a", "p/b/1", "p/b/2", "p/c", "p-/x", "p0", "q/a")
	for _, c := range []struct {
		prefix, after string
		limit         int
		want          []string
	}{
		{"p/", "", 0, []string{"p/a", "p/b/1", "p/b/2", "p/c"}},
		{"p/b/", "", 0, []string{"p/b/1", "p/b/2"}},
		{"p/", "", 2, []string{"p/a", "p/b/1"}},
		{"p/", "", 4, []string{"p/a", "p/b/1", "p/b/2", "p/c"}},
		{"p/", "", 99, []string{"p/a", "p/b/1", "p/b/2", "p/c"}},
		{"p/", "p/a", 0, []string{"p/b/1", "p/b/2", "p/c"}},
		{"p/", "p/a", 1, []string{"p/b/1"}},
		// after need not be a stored key, nor a key at all, nor below the prefix.
		{"p/", "p/aa", 0, []string{"p/b/1", "p/b/2", "p/c"}},
		{"p/", "p/b/", 0, []string{"p/b/1", "p/b/2", "p/c"}},
		{"p/", "p/b/1", 0, []string{"p/b/2", "p/c"}},
		{"p/", "p/b/2", 0, []string{"p/c"}},
		{"p/", "p/b0", 0, []string{"p/c"}},
		{"p/", "p/c", 0, nil},
		{"p/", "a", 0, []string{"p/a", "p/b/1", "p/b/2", "p/c"}},
		{"p/", "z", 0, nil},
		{"", "p/c", 0, []string{"p0", "q/a"}},
		{"absent/", "", 0, nil},
		{"p0/", "", 0, nil},
	} {
		s.both(func(h store.Store) { s.wantKeys(h, c.prefix, c.after, c.limit, c.want...) })
	}
	s.wantEntry("p/b/2")
}

func (s suite) wantEntry(key string) {
	for e, err := range s.b.List(s.ctx, "p/b/", "p/b/1", 1) {
		s.must(err)
		if e.Modified.IsZero() {
			s.t.Errorf("%s: no time of modification", e.Key)
		}
		want := store.Entry{Key: key, Size: int64(len(key)), Modified: e.Modified}
		if diff := cmp.Diff(want, e); diff != "" {
			s.t.Errorf("entry (-want +got):\n%s", diff)
		}
	}
}

func listManyKeys(t *testing.T, s suite) {
	// More than fit any page of a listing, unless in haste.
	n := s.size.keys
	want := make([]string, n)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i := range want {
		want[i] = fmt.Sprintf("many/%d/%06d", i*5/n, i)
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := s.a.PutIfAbsent(s.ctx, want[i], []byte(want[i])); err != nil {
				s.t.Error(err)
			}
		})
	}
	wg.Wait()
	s.wantKeys(s.b, "many/", "", 0, want...)
	s.wantKeys(s.b, "many/", want[n-2], 0, want[n-1])
	s.wantDirs(s.b, "many/", "1", 2, "2", "3")
	s.wantPages(want, n/3)
}

// wantPages lists page after page.
func (s suite) wantPages(want []string, size int) {
	s.t.Helper()
	var got []string
	for after := ""; ; {
		page, err := Collect(s.b.List(s.ctx, "many/", after, size))
		s.must(err)
		for _, e := range page {
			got = append(got, e.Key)
		}
		if len(page) < size {
			break
		}
		after = got[len(got)-1]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("pages of %d (-want +got):\n%s", size, diff)
	}
}

// listUnderChange lists while keys come and go: what stays must be in every listing, in order.
func listUnderChange(t *testing.T, s suite) {
	var stay []string
	for i := range 30 {
		stay = append(stay, fmt.Sprintf("d%d/stay%02d", i/10, i))
	}
	s.put(s.a, stay...)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprintf("d%d/go%d", i%4, g)
				if err := createAndDelete(s.ctx, s.b, s.a, key); err != nil {
					s.t.Errorf("%s: %v", key, err)
					return
				}
			}
		})
	}
	for range 4 * s.size.rounds {
		s.wantAmong(stay)
	}
	close(stop)
	wg.Wait()
}

func (s suite) wantAmong(stay []string) {
	s.t.Helper()
	entries, err := Collect(s.a.List(s.ctx, "", "", 0))
	s.must(err)
	if !slices.IsSortedFunc(entries, func(a, b store.Entry) int { return strings.Compare(a.Key, b.Key) }) {
		s.t.Error("a listing is out of order")
	}
	var got []string
	for _, e := range entries {
		if slices.Contains(stay, e.Key) {
			got = append(got, e.Key)
		}
	}
	if diff := cmp.Diff(stay, got); diff != "" {
		s.t.Errorf("keys that stay (-stored +listed):\n%s", diff)
	}
}

func listingsEndEarly(t *testing.T, s suite) {
	s.put(s.a, "d/1", "d/2", "e/3")
	list, dirs := s.a.List(s.ctx, "", "", 0), s.a.Dirs(s.ctx, "", "", 0)
	for range 2 {
		for e, err := range list {
			s.must(err)
			if e.Key != "d/1" {
				t.Errorf("first entry is %s", e.Key)
			}
			break
		}
		for name, err := range dirs {
			s.must(err)
			if name != "d" {
				t.Errorf("first directory is %s", name)
			}
			break
		}
	}
	// The store may be used in the loop, and what is deleted there is not an error.
	for e, err := range list {
		s.must(err)
		s.must(s.a.Delete(s.ctx, e.Key))
	}
	s.wantKeys(s.b, "", "", 0)
}

func dirsRules(t *testing.T, s suite) {
	s.put(s.a, "p/a/x", "p/a/y", "p/a-b/z", "p/b/c/d", "p/key", "p0/x", "top")
	for _, c := range []struct {
		prefix, after string
		limit         int
		want          []string
	}{
		{"p/", "", 0, []string{"a-b", "a", "b"}},
		{"p/", "a-b", 0, []string{"a", "b"}},
		{"p/", "a", 0, []string{"b"}},
		{"p/", "a-c", 0, []string{"a", "b"}},
		{"p/", "0", 0, []string{"a-b", "a", "b"}},
		{"p/", "b", 0, nil},
		{"p/", "", 1, []string{"a-b"}},
		{"p/", "a-b", 1, []string{"a"}},
		{"p/", "", 3, []string{"a-b", "a", "b"}},
		{"p/b/", "", 0, []string{"c"}},
		{"p/b/c/", "", 0, nil},
		{"", "", 0, []string{"p", "p0"}},
		{"absent/", "", 0, nil},
		{"p/key/", "", 0, nil},
	} {
		s.both(func(h store.Store) { s.wantDirs(h, c.prefix, c.after, c.limit, c.want...) })
	}
}
