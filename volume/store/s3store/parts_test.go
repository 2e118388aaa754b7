package s3store_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/s3store"
	"github.com/sandvol/sandvol/volume/store/s3store/s3test"
)

// Operations of an upload in parts.
const (
	opBegin    = "POST uploads"
	opPart     = "PUT uploadId"
	opComplete = "POST uploadId"
	opAbort    = "DELETE uploadId"
)

// counted is a source that counts how often it is opened.
type counted struct {
	store.Source
	opened int
}

func (c *counted) Open() (io.ReadCloser, error) {
	c.opened++
	return c.Source.Open()
}

// tenParts are the bytes of a blob that openParts sends in ten parts.
var tenParts = bytes.Repeat([]byte("0123456789"), 100)

func openParts(t testing.TB, w *wire) *s3store.Store { return w.open(t).WithSizes(100, 100) }

// wantUploads counts the uploads that are neither completed nor aborted.
func (w *wire) wantUploads(t testing.TB, want int) {
	t.Helper()
	w.fault = nil
	cfg := w.config()
	client := s3.New(s3.Options{
		Region: cfg.Region, Credentials: cfg.Credentials, BaseEndpoint: &cfg.Endpoint, UsePathStyle: true,
		HTTPClient: &http.Client{Transport: w},
	})
	out, err := client.ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: aws.String(s3test.Bucket)})
	must(t, err)
	if len(out.Uploads) != want {
		t.Errorf("%d uploads are left, want %d", len(out.Uploads), want)
	}
}

func wantStored(t testing.TB, s *s3store.Store, key string, want []byte) {
	t.Helper()
	got, err := s.Get(t.Context(), key)
	if must(t, err); !bytes.Equal(got, want) {
		t.Errorf("%s holds %d bytes, not the %d of the blob", key, len(got), len(want))
	}
}

func TestPartsAreRepeatedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		s := openParts(t, w)
		sent := map[string]int{}
		w.fault = func(r request) fault {
			if r.op != opPart {
				return nil
			}
			n := r.URL.Query().Get("partNumber")
			sent[n]++
			switch {
			case n == "3" && sent[n] == 1:
				return lost
			case n == "7" && sent[n] <= 2:
				return lostReply
			}
			return nil
		}
		src := &counted{Source: store.BytesSource(tenParts)}
		must(t, s.PutBlob(t.Context(), "blob", src))
		want := map[string]int{"1": 1, "2": 1, "3": 2, "4": 1, "5": 1, "6": 1, "7": 3, "8": 1, "9": 1, "10": 1}
		if diff := cmp.Diff(want, sent); diff != "" {
			t.Errorf("parts sent (-want +got):\n%s", diff)
		}
		if src.opened != 1 {
			t.Errorf("source was opened %d times", src.opened)
		}
		wantStored(t, s, "blob", tenParts)
		w.wantUploads(t, 0)
	})
}

func TestLostAnswerOfACompletionIsReadBack(t *testing.T) {
	conflict := answer(http.StatusConflict, "ConditionalRequestConflict")
	for _, c := range []struct {
		name   string
		fault  func(request) fault
		opened int
	}{
		{"it took effect", hit(opComplete, 1, lostReply), 1},
		{"it never arrived", hit(opComplete, 1, lost), 1},
		{"all answers are lost", hit(opComplete, 99, lostReply), 1},
		{"a proxy sent it twice", hit(opComplete, 1, twice), 1},
		{"it failed with status 200", hit(opComplete, 1, answer(http.StatusOK, "InternalError")), 1},
		{"the answer of the beginning was lost", hit(opBegin, 1, lost), 1},
		{"another request was under way", hit(opComplete, 2, conflict), 3},
		{"the upload was removed", hit(opComplete, 1, answer(http.StatusNotFound, "NoSuchUpload")), 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t)
				s := openParts(t, w)
				w.fault = c.fault
				src := &counted{Source: store.BytesSource(tenParts)}
				must(t, s.PutBlob(t.Context(), "blob", src))
				if src.opened != c.opened {
					t.Errorf("source was opened %d times, want %d", src.opened, c.opened)
				}
				wantStored(t, s, "blob", tenParts)
				w.wantUploads(t, 0)
			})
		})
	}
}

func TestFailedUploadLeavesNoParts(t *testing.T) {
	errSource := errors.New("source broke")
	for _, c := range []struct {
		name  string
		fault func(request) fault
		src   store.Source
		want  error
	}{
		{"a part is refused", hit(opPart, 99, answer(403, "AccessDenied")), store.BytesSource(tenParts), nil},
		{"no part arrives", hit(opPart, 99, lost), store.BytesSource(tenParts), nil},
		{"the completion is refused", hit(opComplete, 99, answer(403, "AccessDenied")), store.BytesSource(tenParts), nil},
		{"no completion arrives", hit(opComplete, 99, lost), store.BytesSource(tenParts), nil},
		{"the source breaks", nil, brokenSource{tenParts, errSource}, errSource},
		{"others are always in the way", hit(opComplete, 99, answer(409, "OperationAborted")),
			store.BytesSource(tenParts), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t)
				s := openParts(t, w)
				w.fault = c.fault
				err := s.PutBlob(t.Context(), "blob", c.src)
				if c.want != nil {
					wantIs(t, err, c.want)
					wantIs(t, err, store.ErrSource)
				} else {
					wantUnclear(t, err, store.ErrExists, store.ErrSource, context.Canceled)
				}
				w.wantUploads(t, 0)
				_, err = s.Get(t.Context(), "blob")
				wantIs(t, err, store.ErrNotExist)
			})
		})
	}
}

// brokenSource delivers its bytes and then fails.
type brokenSource struct {
	data []byte
	err  error
}

func (b brokenSource) Size() int64 { return int64(len(b.data)) + 1 }
func (b brokenSource) Open() (io.ReadCloser, error) {
	return io.NopCloser(io.MultiReader(bytes.NewReader(b.data), readerFunc(func([]byte) (int, error) {
		return 0, b.err
	}))), nil
}

func TestCancelledUploadLeavesNoParts(t *testing.T) {
	for _, op := range []string{opPart, opComplete} {
		synctest.Test(t, func(t *testing.T) {
			w := newWire(t)
			s := openParts(t, w)
			w.fault = hit(op, 99, hang)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			wantIs(t, s.PutBlob(ctx, "blob", store.BytesSource(tenParts)), context.DeadlineExceeded)
			w.wantUploads(t, 0)
		})
	}
}

// What could not be cleaned up is told, and the first error stays what it is.
func TestFailedAbortIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		s := openParts(t, w)
		w.fault = hit(opAbort, 99, answer(403, "AccessDenied"))
		err := s.PutBlob(t.Context(), "blob", brokenSource{tenParts, io.ErrNoProgress})
		wantIs(t, err, io.ErrNoProgress)
		w.wantUploads(t, 1)
	})
}

func TestBlobThatIsThereIsNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		s := openParts(t, w)
		must(t, s.PutBlob(t.Context(), "blob", store.BytesSource(tenParts)))
		src := &counted{Source: store.BytesSource(tenParts)}
		wantIs(t, s.PutBlob(t.Context(), "blob", src), store.ErrExists)
		if src.opened != 0 || w.count(opBegin) != 1 {
			t.Errorf("source was opened %d times, %d uploads", src.opened, w.count(opBegin))
		}
	})
}

// Two uploads of one key that are completed one after the other: the second is told, and its parts are gone.
func TestSecondOfTwoUploadsIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		s := openParts(t, w)
		other := slices.Concat(tenParts, tenParts)
		w.fault = func(r request) fault {
			if r.op != opComplete || r.n != 1 {
				return nil
			}
			return func(_ *http.Request, send func() *http.Response) (*http.Response, error) {
				must(t, s.PutBlob(t.Context(), "blob", store.BytesSource(other)))
				return send(), nil
			}
		}
		wantIs(t, s.PutBlob(t.Context(), "blob", store.BytesSource(tenParts)), store.ErrExists)
		wantStored(t, s, "blob", other)
		w.wantUploads(t, 0)
	})
}

func TestPartsOfGreatBlobsAreFewEnough(t *testing.T) {
	const limit = 10_000
	for _, size := range []int64{1, 16 << 20, 8 << 20 * limit, 8<<20*limit + 1, 1 << 40, 5 << 40} {
		part := int64(s3store.PartSize(size))
		if part < 8<<20 || (size+part-1)/part > limit {
			t.Errorf("%d bytes in parts of %d are %d parts", size, part, (size+part-1)/part)
		}
	}
}
