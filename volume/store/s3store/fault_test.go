package s3store_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/s3store"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

func TestLostAnswerOfAPutIsReadBack(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault func(request) fault
		want  error
		there string // what another writer stored before
	}{
		{"it took effect", hit("PUT", 1, lostReply), nil, ""},
		{"all answers are lost", hit("PUT", 99, lostReply), nil, ""},
		{"a proxy sent it twice", hit("PUT", 1, twice), nil, ""},
		{"it never arrived", hit("PUT", 1, lost), nil, ""},
		{"it came second", hit("PUT", 1, lostReply), store.ErrExists, "other"},
		{"it never arrived and came second", hit("PUT", 99, lost), store.ErrExists, "other"},
		// Equal bytes do not make another's record ours.
		{"it came second with the same bytes", hit("PUT", 1, lostReply), store.ErrExists, "body"},
		{"the server was in trouble", hit("PUT", 1, func(r *http.Request, send func() *http.Response) (*http.Response, error) {
			_ = send()
			return answer(http.StatusInternalServerError, "InternalError")(r, nil)
		}), nil, ""},
		{"another request was under way", hit("PUT", 2, answer(http.StatusConflict, "ConditionalRequestConflict")), nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t)
				s := w.open(t)
				want := "body"
				if c.there != "" {
					want = c.there
					must(t, s.PutIfAbsent(t.Context(), "key", []byte(c.there)))
					w.counts = nil
				}
				w.fault = c.fault
				wantIs(t, s.PutIfAbsent(t.Context(), "key", []byte("body")), c.want)
				got, err := s.Get(t.Context(), "key")
				if must(t, err); string(got) != want {
					t.Errorf("stored is %q, want %q", got, want)
				}
			})
		})
	}
}

func TestPutThatMayYetLandIsNotDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		s := w.open(t)
		w.fault = hit("PUT", 99, lost)
		err := s.PutIfAbsent(t.Context(), "key", nil)
		wantUnclear(t, err, store.ErrExists, store.ErrNotExist, context.DeadlineExceeded)
		if n := w.count("PUT"); n != s3store.Tries {
			t.Errorf("%d tries, want %d", n, s3store.Tries)
		}
		// Nor when nothing can be read.
		w.fault = func(request) fault { return lost }
		wantUnclear(t, s.PutIfAbsent(t.Context(), "key", nil), store.ErrExists, store.ErrNotExist)
	})
}

func TestRefusalByAnObjectThatIsGoneByNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		w.fault = hit("PUT", 1, answer(http.StatusPreconditionFailed, "PreconditionFailed"))
		wantIs(t, w.open(t).PutIfAbsent(t.Context(), "key", nil), store.ErrExists)
		// After a try without an answer it may have been ours.
		w = newWire(t)
		w.fault = func(r request) fault {
			switch {
			case r.op == "PUT" && r.n == 1:
				return lost
			case r.op == "PUT":
				return answer(http.StatusPreconditionFailed, "PreconditionFailed")
			}
			return nil
		}
		wantUnclear(t, w.open(t).PutIfAbsent(t.Context(), "key", nil), store.ErrExists)
	})
}

func TestEveryMethodIsRepeated(t *testing.T) {
	for name, f := range map[string]fault{
		"unreachable": lost, "answer lost": lostReply, "500": answer(500, "InternalError"),
		"503": answer(503, "SlowDown"), "429": answer(429, "TooManyRequests"), "hanging": hang,
		"502 by a proxy": answer(502, ""),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t)
				s := w.open(t)
				w.fault = func(r request) fault {
					if r.n%s3store.Tries != 0 {
						return f
					}
					return nil
				}
				ctx := t.Context()
				must(t, s.PutIfAbsent(ctx, "d/key", []byte("body")))
				_, err := s.Get(ctx, "d/key")
				must(t, err)
				_, err = storetest.Collect(s.List(ctx, "", "", 0))
				must(t, err)
				_, err = storetest.Collect(s.Dirs(ctx, "", "", 0))
				must(t, err)
				b, err := s.OpenBlob(ctx, "d/key")
				must(t, err)
				_, err = b.ReadRange(ctx, make([]byte, 4), 0)
				must(t, err)
				must(t, s.Delete(ctx, "d/key"))
			})
		})
	}
}

func TestWhatCannotPassIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, f := range []fault{answer(403, "AccessDenied"), answer(400, "InvalidRequest"), answer(501, "NotImplemented"),
			answer(301, "PermanentRedirect"), answer(404, "NoSuchBucket")} {
			w := newWire(t)
			w.fault = func(request) fault { return f }
			s := w.open(t)
			wantUnclear(t, s.PutIfAbsent(t.Context(), "key", nil), store.ErrExists)
			_, err := s.Get(t.Context(), "key")
			wantUnclear(t, err, store.ErrNotExist)
			if diff := cmp.Diff([]string{"PUT", "GET"}, w.ops()); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		}
	})
}

// A bucket that is gone does not make its keys absent.
func TestMissingBucketIsNotAnAbsentKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		cfg := w.config()
		cfg.Bucket = "absent"
		s, err := s3store.New(t.Context(), cfg, s3store.WithoutProbe(), s3store.WithTransport(w))
		must(t, err)
		ctx := t.Context()
		b, err := s.OpenBlob(ctx, "d/key")
		must(t, err)
		_, getErr := s.Get(ctx, "d/key")
		_, sizeErr := b.Size(ctx)
		_, readErr := b.ReadRange(ctx, make([]byte, 1), 0)
		_, listErr := storetest.Collect(s.List(ctx, "", "", 0))
		_, dirsErr := storetest.Collect(s.Dirs(ctx, "", "", 0))
		for op, err := range map[string]error{
			"get": getErr, "size": sizeErr, "read": readErr, "list": listErr, "dirs": dirsErr,
			"put": s.PutIfAbsent(ctx, "d/key", nil), "delete": s.Delete(ctx, "d/key"),
		} {
			if err == nil || errors.Is(err, store.ErrNotExist) || errors.Is(err, store.ErrExists) {
				t.Errorf("%s: %v, want an error about the bucket", op, err)
			}
		}
	})
}

func TestRetryAfterIsObeyed(t *testing.T) {
	for name, after := range map[string]func(time.Time) []string{
		"seconds": func(time.Time) []string { return []string{"Retry-After", "7"} },
		"date": func(now time.Time) []string {
			return []string{"Retry-After", now.Add(7 * time.Second).UTC().Format(http.TimeFormat)}
		},
		"date of a server with another clock": func(now time.Time) []string {
			at := now.Add(-time.Hour).UTC()
			return []string{"Date", at.Format(http.TimeFormat), "Retry-After", at.Add(7 * time.Second).Format(http.TimeFormat)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t)
				s := w.open(t)
				w.fault = hit("PUT", 1, answer(503, "SlowDown", after(time.Now())...))
				begun := time.Now()
				must(t, s.PutIfAbsent(t.Context(), "key", nil))
				if d := time.Since(begun); d < 7*time.Second || d > 8*time.Second {
					t.Errorf("repeated after %s, want 7 s", d)
				}
			})
		})
	}
}

// A node whose clock is wrong signs with the server's.
func TestOtherClockIsCorrected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		s := w.open(t)
		w.fault = func(r request) fault {
			signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
			must(t, err)
			server := time.Now().Add(2 * time.Hour)
			if server.Sub(signed).Abs() < 15*time.Minute {
				return nil
			}
			return answer(http.StatusForbidden, "RequestTimeTooSkewed", "Date", server.UTC().Format(http.TimeFormat))
		}
		must(t, s.PutIfAbsent(t.Context(), "key", nil))
	})
}

func TestServerThatWantsToBeLeftAloneIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		s := w.open(t)
		w.fault = hit("GET", 99, answer(503, "SlowDown", "Retry-After", "3600"))
		begun := time.Now()
		_, err := s.Get(t.Context(), "key")
		wantUnclear(t, err, store.ErrNotExist)
		if d := time.Since(begun); d > s3store.MaxRetryAfter || w.count("GET") != 1 {
			t.Errorf("%d requests in %s", w.count("GET"), d)
		}
	})
}

func TestContextEndsEverything(t *testing.T) {
	for name, f := range map[string]fault{
		"in a pause": answer(503, "SlowDown", "Retry-After", "50"), "in a request": hang, "in a body": stuck(1),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t)
				s := w.open(t)
				must(t, s.PutIfAbsent(t.Context(), "key", []byte("body")))
				w.fault = hit("GET", 99, f)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				begun := time.Now()
				_, err := s.Get(ctx, "key")
				wantIs(t, err, context.DeadlineExceeded)
				if d := time.Since(begun); d != 3*time.Second {
					t.Errorf("ended after %s, want 3 s", d)
				}
			})
		})
	}
}

// The caller's own deadline has not come: the error must not say so.
func TestServerThatNeverAnswersIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		s := w.open(t)
		w.fault = func(request) fault { return hang }
		begun := time.Now()
		_, err := s.Get(t.Context(), "key")
		wantUnclear(t, err, context.DeadlineExceeded, context.Canceled, store.ErrNotExist)
		if d, most := time.Since(begun), s3store.Tries*(s3store.StallTimeout+5*time.Second); d > most {
			t.Errorf("given up after %s, want at most %s", d, most)
		}
	})
}

func TestBrokenBodiesAreReadAgain(t *testing.T) {
	for name, f := range map[string]fault{
		"reset": cut(3, errReset), "truncated": cut(3, io.ErrUnexpectedEOF), "ended too soon": cut(3, io.EOF),
		"stuck": stuck(3),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t)
				s := w.open(t)
				must(t, s.PutIfAbsent(t.Context(), "key", []byte("0123456789")))
				var ranges []string
				w.fault = func(r request) fault {
					ranges = append(ranges, r.Header.Get("Range"))
					if len(ranges) <= 2 {
						return f
					}
					return nil
				}
				got, err := s.Get(t.Context(), "key")
				if must(t, err); string(got) != "0123456789" {
					t.Errorf("got %q", got)
				}
				ranges = nil
				b, err := s.OpenBlob(t.Context(), "key")
				must(t, err)
				p := make([]byte, 8)
				n, err := b.ReadRange(t.Context(), p, 1)
				if must(t, err); n != 8 || string(p) != "12345678" {
					t.Errorf("%d bytes, %q", n, p)
				}
				// What has come is not asked for again.
				if diff := cmp.Diff([]string{"bytes=1-8", "bytes=4-8", "bytes=7-8"}, ranges); diff != "" {
					t.Errorf("ranges (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestSlowBodyIsNotAStalledOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		s := w.open(t)
		must(t, s.PutIfAbsent(t.Context(), "key", []byte("0123456789")))
		w.fault = func(request) fault { return trickle(s3store.StallTimeout - time.Second) }
		if got, err := s.Get(t.Context(), "key"); err != nil || string(got) != "0123456789" || w.count("GET") != 1 {
			t.Errorf("%q, %v after %d requests", got, err, w.count("GET"))
		}
	})
}

func TestRangesOfAnotherObjectAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		s := w.open(t)
		must(t, s.PutIfAbsent(t.Context(), "key", []byte("0123456789")))
		b, err := s.OpenBlob(t.Context(), "key")
		must(t, err)
		_, err = b.ReadRange(t.Context(), make([]byte, 5), 0)
		must(t, err)
		must(t, s.Delete(t.Context(), "key"))
		must(t, s.PutIfAbsent(t.Context(), "key", []byte("abcdefghij")))
		n, err := b.ReadRange(t.Context(), make([]byte, 5), 5)
		if wantIs(t, err, store.ErrNotExist); n != 0 {
			t.Errorf("%d bytes of another object", n)
		}
	})
}

func TestAnswersThatAreNotTheRangeAreRefused(t *testing.T) {
	for _, contentRange := range []string{"", "bytes 0-4/10", "bytes 5-9", "bytes 5-9/*", "bytes 5-4/10", "bytes 5-9/9"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWire(t)
			s := w.open(t)
			must(t, s.PutIfAbsent(t.Context(), "key", []byte("0123456789")))
			w.fault = func(request) fault {
				return func(_ *http.Request, send func() *http.Response) (*http.Response, error) {
					resp := send()
					resp.Header.Del("Content-Range")
					if contentRange != "" {
						resp.Header.Set("Content-Range", contentRange)
					}
					return resp, nil
				}
			}
			b, err := s.OpenBlob(t.Context(), "key")
			must(t, err)
			n, err := b.ReadRange(t.Context(), make([]byte, 5), 5)
			if wantUnclear(t, err, io.EOF, store.ErrNotExist); n != 0 {
				t.Errorf("Content-Range %q: %d bytes", contentRange, n)
			}
		})
	}
}

// A handle that knows the size answers by itself what is beyond the end.
func TestReadsBeyondTheEndCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		s := w.open(t)
		must(t, s.PutIfAbsent(t.Context(), "key", []byte("0123456789")))
		b, err := s.OpenBlob(t.Context(), "key")
		must(t, err)
		n, err := b.ReadRange(t.Context(), make([]byte, 20), 5)
		if n != 5 || err != io.EOF {
			t.Errorf("%d, %v", n, err)
		}
		_, err = b.ReadRange(t.Context(), make([]byte, 5), 10)
		wantIs(t, err, io.EOF)
		size, err := b.Size(t.Context())
		if must(t, err); size != 10 {
			t.Errorf("size %d", size)
		}
		if diff := cmp.Diff([]string{"PUT", "GET"}, w.ops()); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	})
}

func TestListingsThatMisleadAreRefused(t *testing.T) {
	page := func(truncated bool, keys ...string) fault {
		return func(r *http.Request, _ func() *http.Response) (*http.Response, error) {
			resp, err := answer(200, "")(r, nil)
			body := fmt.Sprintf("<ListBucketResult><IsTruncated>%t</IsTruncated>", truncated)
			for _, key := range keys {
				body += "<Contents><Key>" + key + "</Key><Size>1</Size></Contents>"
			}
			resp.Body = io.NopCloser(strings.NewReader(body + "</ListBucketResult>"))
			return resp, err
		}
	}
	for name, f := range map[string]fault{
		"out of order":  page(false, "a/b", "a-b"),
		"same again":    page(false, "a", "a"),
		"no next page":  page(true, "a"),
		"not a listing": answer(200, "Surprise"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t)
				w.fault = func(request) fault { return f }
				_, err := storetest.Collect(w.open(t).List(t.Context(), "", "", 0))
				wantUnclear(t, err)
			})
		})
	}
}

// the contract holds while requests fail at random, before their effect and after it, and with blobs in parts.
func TestS3storeBehindABadNetworkIsAStore(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	faults := []fault{lost, lostReply, twice, answer(503, "SlowDown"), answer(500, "InternalError"), cut(1, errReset)}
	storetest.RunQuick(t, storesOnWire(func(request) fault {
		const percent = 5
		if rng.IntN(100) >= percent {
			return nil
		}
		return faults[rng.IntN(len(faults))]
	}))
}

// storesOnWire returns a factory of stores on a wire of their own, in which all but the smallest blobs have parts.
func storesOnWire(plan func(request) fault) storetest.Factory {
	return func(t testing.TB) (a, b store.Store) {
		w := newWire(t)
		w.fault = plan
		open := func() store.Store { return w.open(t).WithPause(time.Microsecond).WithSizes(9, 128<<10) }
		return open(), open()
	}
}
