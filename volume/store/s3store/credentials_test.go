package s3store_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/s3store"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

const (
	accessKey = "AKIDTHATNOBODYSEES"
	secret    = "secret-that-nobody-sees"
	token     = "token-that-nobody-sees"
)

func wantNoSecrets(t testing.TB, text string) {
	t.Helper()
	for _, s := range []string{accessKey, secret, token} {
		if strings.Contains(text, s) {
			t.Errorf("%q is in: %s", s, text)
		}
	}
}

// rotating gives other credentials each time it is asked.
type rotating struct {
	mu    sync.Mutex
	asked int
}

func (r *rotating) Retrieve(context.Context) (aws.Credentials, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	return aws.Credentials{
		AccessKeyID: accessKey, SecretAccessKey: secret, SessionToken: fmt.Sprintf("token-%d", r.asked),
	}, nil
}

// expireFirst refuses the first credentials of a rotating provider.
func expireFirst(r request) fault {
	if r.Header.Get("X-Amz-Security-Token") != "token-1" {
		return nil
	}
	if r.Method == http.MethodHead {
		return answer(http.StatusBadRequest, "") // HEAD has no body, and so no code
	}
	return answer(http.StatusBadRequest, "ExpiredToken")
}

func openRotating(t testing.TB, w *wire, p aws.CredentialsProvider) *s3store.Store {
	t.Helper()
	cfg := w.config()
	cfg.Credentials = p
	s, err := s3store.New(t.Context(), cfg, s3store.WithoutProbe(), s3store.WithTransport(w))
	must(t, err)
	return s
}

// credentials that expire are replaced by what the provider gives now, and the caller does not notice.
func TestExpiredCredentialsAreRefreshedOnce(t *testing.T) {
	for name, call := range map[string]func(context.Context, *s3store.Store) error{
		"put": func(ctx context.Context, s *s3store.Store) error { return s.PutIfAbsent(ctx, "new", nil) },
		"get": func(ctx context.Context, s *s3store.Store) error {
			_, err := s.Get(ctx, "key")
			return err
		},
		"size": func(ctx context.Context, s *s3store.Store) error {
			b, _ := s.OpenBlob(ctx, "key")
			_, err := b.Size(ctx)
			return err
		},
		"list": func(ctx context.Context, s *s3store.Store) error {
			_, err := storetest.Collect(s.List(ctx, "", "", 0))
			return err
		},
		"delete": func(ctx context.Context, s *s3store.Store) error { return s.Delete(ctx, "key") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t)
				must(t, w.open(t).PutIfAbsent(t.Context(), "key", nil))
				p := &rotating{}
				s := openRotating(t, w, p)
				w.fault = expireFirst
				must(t, call(t.Context(), s))
				if p.asked != 2 {
					t.Errorf("the provider was asked %d times, want 2", p.asked)
				}
			})
		})
	}
}

func TestManyCallsRefreshCredentialsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		p := &rotating{}
		s := openRotating(t, w, p)
		w.fault = func(r request) fault {
			f := expireFirst(r)
			if f == nil {
				return nil
			}
			// Most are refused when the first has got new credentials already.
			return func(hr *http.Request, send func() *http.Response) (*http.Response, error) {
				time.Sleep(time.Duration(r.n) * time.Second)
				return f(hr, send)
			}
		}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if err := s.PutIfAbsent(t.Context(), fmt.Sprint("key", i), nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if p.asked != 2 {
			t.Errorf("the provider was asked %d times, want 2", p.asked)
		}
	})
}

func TestProviderWithNothingBetterIsNotAskedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		p := &rotating{}
		s := openRotating(t, w, p)
		w.fault = func(request) fault { return answer(http.StatusForbidden, "ExpiredToken") }
		wantUnclear(t, s.PutIfAbsent(t.Context(), "key", nil), store.ErrExists)
		if p.asked != 2 || w.count("PUT") != 2 {
			t.Errorf("the provider was asked %d times, and the server %d times", p.asked, w.count("PUT"))
		}
	})
}

// no error tells credentials, whatever fails. Nothing is logged at all.
func TestErrorsTellNoCredentials(t *testing.T) {
	for name, f := range map[string]fault{
		"unreachable": lost, "denied": answer(403, "SignatureDoesNotMatch"), "expired": answer(403, "ExpiredToken"),
		"unknown":    answer(403, "InvalidAccessKeyId"),
		"redirected": answer(307, "TemporaryRedirect", "Location", "http://other.invalid/"),
		"broken":     cut(1, errReset), "hanging": hang, "in trouble": answer(500, "InternalError"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t)
				w.fault = func(request) fault { return f }
				cfg := w.config()
				cfg.Credentials = credentials.NewStaticCredentialsProvider(accessKey, secret, token)
				_, err := s3store.New(t.Context(), cfg, s3store.WithTransport(w))
				if err == nil {
					t.Fatal("the probe succeeded")
				}
				texts := []string{err.Error(), fmt.Sprintf("%+v %#v", err, err)}
				s, err := s3store.New(t.Context(), cfg, s3store.WithoutProbe(), s3store.WithTransport(w))
				must(t, err)
				_, getErr := s.Get(t.Context(), "key")
				_, listErr := storetest.Collect(s.List(t.Context(), "", "", 0))
				for _, err := range []error{getErr, listErr, s.PutIfAbsent(t.Context(), "key", nil),
					s.WithSizes(0, 100).PutBlob(t.Context(), "blob", store.BytesSource(tenParts))} {
					if err == nil {
						t.Error("a call succeeded")
						continue
					}
					texts = append(texts, err.Error())
				}
				texts = append(texts, fmt.Sprintf("%v %+v", s, s))
				wantNoSecrets(t, strings.Join(texts, "\n"))
			})
		})
	}
}
