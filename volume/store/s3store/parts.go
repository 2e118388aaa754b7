package s3store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"

	"github.com/sandvol/sandvol/volume/store"
)

const (
	defaultSingle = 16 << 20
	defaultPart   = 8 << 20
	// maxParts is the limit of the protocol. Blobs for which the usual parts would be too many get larger ones.
	maxParts = 10_000
	// partsAtOnce is how many parts of one blob are under way together; one more is being read.
	partsAtOnce = 4
	// uploads bounds how often a blob is begun again after another request got in the way of its completion.
	uploads = 3
	// abortTimeout is what a failed upload may take to clean up, when its own context has ended.
	abortTimeout = 10 * time.Second
)

// errSpoiled ends an upload that the server will not complete any more, though nothing is stored under the key.
var errSpoiled = errors.New("upload was spoiled by another request")

// putParts uploads a blob in parts. It becomes visible when the upload is completed, which has the condition of every
// write: nothing is stored under the key.
func (s *Store) putParts(ctx context.Context, key string, src store.Source) error {
	// Whoever comes late need not send gigabytes to be told so.
	switch _, err := s.head(ctx, key); {
	case err == nil:
		return store.ErrExists
	case !errors.Is(err, store.ErrNotExist):
		return err
	}
	var err error
	for range uploads {
		if err = s.upload(ctx, key, src); !errors.Is(err, errSpoiled) {
			break
		}
	}
	return err
}

// upload is one upload from begin to end. When it fails, its parts are removed.
func (s *Store) upload(ctx context.Context, key string, src store.Source) error {
	writer := rand.Text()
	id, err := s.beginUpload(ctx, key, writer)
	if err != nil {
		return err
	}
	parts, err := s.sendParts(ctx, key, id, src)
	if err == nil {
		err = s.complete(ctx, key, id, writer, parts)
	}
	if err == nil {
		return nil
	}
	// Also when the caller has gone: nobody sees the parts, and they are paid for until somebody removes them.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	if aerr := s.abort(ctx, key, id); aerr != nil {
		return fmt.Errorf("%w (its parts are left: %v)", err, aerr)
	}
	return err
}

// beginUpload starts an upload. When an answer is lost it is begun twice, and the first stays empty until the bucket's
// rule for unfinished uploads removes it.
func (s *Store) beginUpload(ctx context.Context, key, writer string) (*string, error) {
	var id *string
	_, err := s.call(ctx, func(ctx context.Context, _ *progress) error {
		out, err := s.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
			Bucket: &s.bucket, Key: s.object(key), Metadata: map[string]string{writerMeta: writer},
		})
		if err == nil {
			id = out.UploadId
		}
		return err
	})
	return id, err
}

// sendParts reads the source once and sends it in parts, each from memory, so that one that failed is sent again alone.
func (s *Store) sendParts(ctx context.Context, key string, id *string, src store.Source) ([]types.CompletedPart, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(partsAtOnce)
	w := &partWriter{
		send: func(n int32, body []byte) (*string, int, error) { return s.sendPart(ctx, key, id, n, body) },
		size: partSize(src.Size(), s.part), group: group, free: make(chan []byte, partsAtOnce+1),
	}
	err := store.CopySource(ctx, w, src)
	if err == nil {
		w.flush()
	} else {
		cancel() // the parts under way are for nothing
	}
	// A part that failed ends the copy by its context, and its own error is the one that says why. A source that failed
	// ends the parts in the same way.
	if perr := group.Wait(); perr != nil && !errors.Is(err, store.ErrSource) {
		err = perr
	}
	return w.parts, err
}

// sendPart returns the tag of a part that was sent, and how many tries that took.
func (s *Store) sendPart(ctx context.Context, key string, id *string, n int32, body []byte) (
	tag *string, ran int, err error) {
	ran, err = s.call(ctx, func(ctx context.Context, p *progress) error {
		out, err := s.client.UploadPart(ctx, &s3.UploadPartInput{
			Bucket: &s.bucket, Key: s.object(key), UploadId: id, PartNumber: &n,
			Body: p.body(body), ContentLength: aws.Int64(int64(len(body))),
		})
		if err == nil {
			tag = out.ETag
		}
		return err
	})
	if err != nil {
		return nil, ran, fmt.Errorf("part %d: %w", n, err)
	}
	return tag, ran, nil
}

// partSize returns the size of the parts of a blob: least, or whole MiB when there would be too many.
func partSize(blob, least int64) int {
	if blob <= least*maxParts {
		return int(least)
	}
	const unit = 1 << 20
	size := (blob + maxParts - 1) / maxParts
	return int((size + unit - 1) / unit * unit)
}

// partWriter cuts what is written to it into parts and sends them in the background. Its buffers are used again.
type partWriter struct {
	send  func(n int32, body []byte) (tag *string, ran int, err error)
	size  int
	group *errgroup.Group
	free  chan []byte
	buf   []byte // the part that is being filled

	mu    sync.Mutex
	parts []types.CompletedPart // in order; a tag is there when its part was sent
}

func (w *partWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if w.buf == nil {
			w.buf = w.buffer()
		}
		m := min(len(p), w.size-len(w.buf))
		w.buf, p = append(w.buf, p[:m]...), p[m:]
		if len(w.buf) == w.size {
			w.flush()
		}
	}
	return n, nil
}

func (w *partWriter) buffer() []byte {
	select {
	case b := <-w.free:
		return b[:0]
	default:
		return make([]byte, 0, w.size)
	}
}

// flush sends the part that is being filled. It waits while too many are under way.
func (w *partWriter) flush() {
	if len(w.buf) == 0 {
		return
	}
	body := w.buf
	w.buf = nil
	w.mu.Lock()
	i := len(w.parts)
	n := int32(i + 1)
	w.parts = append(w.parts, types.CompletedPart{PartNumber: &n})
	w.mu.Unlock()
	w.group.Go(func() error {
		tag, ran, err := w.send(n, body)
		w.mu.Lock()
		w.parts[i].ETag = tag
		w.mu.Unlock()
		if err == nil && ran == 1 {
			// Not after a try that failed: its connection may still be reading the buffer. There is room for all that can
			// be under way.
			w.free <- body
		}
		return err
	})
}

// complete makes an upload the object of its key, or says that there is one.
func (s *Store) complete(ctx context.Context, key string, id *string, writer string, parts []types.CompletedPart) error {
	first := true
	ran, err := s.call(ctx, func(ctx context.Context, _ *progress) error {
		_, err := s.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
			Bucket: &s.bucket, Key: s.object(key), UploadId: id, IfNoneMatch: ifAbsent,
			MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
		})
		if first && slices.Contains(spoiling, code(err)) {
			// The upload cannot be completed any more. After an earlier try it would be in doubt instead: that one may
			// have completed it.
			return errSpoiled
		}
		first = false
		return err
	})
	if err == nil || !unclear(err) {
		return err
	}
	return s.settle(ctx, key, writer, ran, err)
}

// spoiling are the codes after which an upload must begin again: another request for the same key was under way, or the
// upload was removed, as the bucket's rule for unfinished ones does.
var spoiling = []string{codeConflict, codeAborted, codeNoSuchUpload}

// unclear reports whether a failed completion may be one that succeeded.
func unclear(err error) bool {
	return refused(err) || transient(err) || errors.Is(err, errSpoiled) || code(err) == codeNoSuchUpload
}

// abort removes the parts of an upload that failed. One that was completed is no upload any more, and stays.
func (s *Store) abort(ctx context.Context, key string, id *string) error {
	_, err := s.call(ctx, func(ctx context.Context, _ *progress) error {
		_, err := s.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
			Bucket: &s.bucket, Key: s.object(key), UploadId: id,
		})
		return err
	})
	if code(err) == codeNoSuchUpload {
		return nil
	}
	return err
}
