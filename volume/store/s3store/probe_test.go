package s3store_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/s3store"
	"github.com/sandvol/sandvol/volume/store/s3store/s3test"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

func (w *wire) probe(t testing.TB) (*s3store.Store, error) {
	return s3store.New(t.Context(), w.config(), s3store.WithTransport(w))
}

func TestProbeLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		s, err := w.probe(t)
		must(t, err)
		entries, err := storetest.Collect(s.List(t.Context(), "", "", 0))
		if must(t, err); len(entries) > 0 {
			t.Errorf("left: %v", entries)
		}
		list := httptest.NewRequest(http.MethodGet, "/"+s3test.Bucket+"?list-type=2", nil)
		rec := httptest.NewRecorder()
		w.handler.ServeHTTP(rec, list)
		if strings.Contains(rec.Body.String(), "<Key>") {
			t.Errorf("left in the bucket: %s", rec.Body)
		}
		w.wantUploads(t, 0)
	})
}

// handler changes requests on their way to a server.
type handler struct {
	http.Handler
	change func(http.ResponseWriter, *http.Request) http.ResponseWriter
}

func (h handler) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if rw = h.change(rw, r); rw != nil {
		h.Handler.ServeHTTP(rw, r)
	}
}

// dropHeader is a server that ignores a header of requests, as servers do that are older than it.
func dropHeader(t testing.TB, name string) http.Handler {
	return handler{s3test.NewHandler(t), func(rw http.ResponseWriter, r *http.Request) http.ResponseWriter {
		r.Header.Del(name)
		return rw
	}}
}

func TestProbeRefusesUnfitServers(t *testing.T) {
	listless := handler{s3test.NewHandler(t), func(rw http.ResponseWriter, r *http.Request) http.ResponseWriter {
		if r.URL.Query().Has("list-type") {
			_, _ = rw.Write([]byte("<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"))
			return nil
		}
		return rw
	}}
	undeleting := handler{s3test.NewHandler(t), func(rw http.ResponseWriter, r *http.Request) http.ResponseWriter {
		if r.Method == http.MethodDelete && !r.URL.Query().Has("uploadId") {
			rw.WriteHeader(http.StatusNoContent)
			return nil
		}
		return rw
	}}
	for _, c := range []struct {
		name    string
		server  http.Handler
		fault   string
		without bool // also a store that was not probed does harm
	}{
		{"ignores conditions", dropHeader(t, "If-None-Match"), "object", true},
		{"completes without condition", s3test.Unconditional(t), "in parts", false},
		{"drops metadata", dropHeader(t, "X-Amz-Meta-Sandvol-Writer"), "metadata", false},
		{"lists late", listless, "listing", false},
		{"keeps what is deleted", undeleting, "removed", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t)
				w.handler = c.server
				_, err := w.probe(t)
				var unfit *s3store.UnfitError
				if !errors.As(err, &unfit) || !errors.Is(err, s3store.ErrUnfit) {
					t.Fatalf("%v, want an *UnfitError", err)
				}
				if !strings.Contains(unfit.Fault, c.fault) || unfit.Advice == "" {
					t.Errorf("fault %q, advice %q, want one about %q", unfit.Fault, unfit.Advice, c.fault)
				}
				if c.without {
					s := w.open(t)
					must(t, s.PutIfAbsent(t.Context(), "key", nil))
					must(t, s.PutIfAbsent(t.Context(), "key", nil))
				}
			})
		})
	}
}

// A server that lets only one writer in, and tells another one that it was the one.
func TestProbeRefusesAServerThatCrownsTheWrongWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		crowned := false
		w.fault = func(r request) fault {
			if crowned || r.op != "PUT" || !strings.HasSuffix(r.URL.Path, "-put") {
				return nil
			}
			crowned = true
			return answer(http.StatusOK, "")
		}
		_, err := w.probe(t)
		wantIs(t, err, s3store.ErrUnfit)
	})
}

func TestProbeRefusesServersWithoutConditions(t *testing.T) {
	for _, op := range []string{"PUT", opComplete} {
		synctest.Test(t, func(t *testing.T) {
			w := newWire(t)
			w.fault = hit(op, 99, answer(http.StatusNotImplemented, "NotImplemented"))
			_, err := w.probe(t)
			wantIs(t, err, s3store.ErrUnfit)
		})
	}
}

// What cannot be probed may still be fit.
func TestProbeThatCannotBeMadeIsNoVerdict(t *testing.T) {
	for name, f := range map[string]func(request) fault{
		"away":          func(request) fault { return lost },
		"denied":        func(request) fault { return answer(403, "AccessDenied") },
		"list denied":   hit("GET list-type", 99, answer(403, "AccessDenied")),
		"delete denied": hit("DELETE", 99, answer(403, "AccessDenied")),
		"parts denied":  hit(opBegin, 99, answer(403, "AccessDenied")),
		"read denied":   hit("HEAD", 99, answer(403, "AccessDenied")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t)
				w.fault = f
				_, err := w.probe(t)
				wantUnclear(t, err, s3store.ErrUnfit, store.ErrExists)
			})
		})
	}
}
