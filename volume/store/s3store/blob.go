package s3store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/sandvol/sandvol/volume/store"
)

// errReplaced is the end of a handle whose object was deleted and made anew: no two reads may mix two objects.
var errReplaced = fmt.Errorf("another object has taken its place since it was first read: %w", store.ErrNotExist)

// OpenBlob implements store.Store. The handle stays with the object that it read first. Unlike an open file, an object
// that is deleted is gone for its readers, too.
func (s *Store) OpenBlob(ctx context.Context, key string) (store.Blob, error) {
	if err := s.begin(ctx, key); err != nil {
		return nil, opError("open blob", key, err)
	}
	return &blob{s: s, key: key}, nil
}

type blob struct {
	s   *Store
	key string

	mu     sync.Mutex
	tag    *string // of the object; nil until the first answer
	size   int64   // of the object, with the tag
	closed bool
}

// known returns the object's tag and size, with a nil tag when nothing was read yet.
func (b *blob) known(ctx context.Context) (tag *string, size int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, 0, os.ErrClosed
	}
	return b.tag, b.size, ctx.Err()
}

// learn keeps what the first answer says of the object.
func (b *blob) learn(tag *string, size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tag == nil && tag != nil {
		b.tag, b.size = tag, size
	}
}

func (b *blob) Size(ctx context.Context) (int64, error) {
	tag, size, err := b.known(ctx)
	if err == nil && tag == nil {
		size, err = b.ask(ctx)
	}
	return size, opError("size of", b.key, err)
}

func (b *blob) ask(ctx context.Context) (int64, error) {
	out, err := b.s.head(ctx, b.key)
	if err != nil {
		return 0, err
	}
	size := aws.ToInt64(out.ContentLength)
	b.learn(out.ETag, size)
	return size, nil
}

func (b *blob) ReadRange(ctx context.Context, p []byte, off int64) (int, error) {
	tag, size, err := b.known(ctx)
	switch {
	case err != nil:
	case off < 0:
		err = fmt.Errorf("offset %d is negative: %w", off, os.ErrInvalid)
	case len(p) == 0:
		_, err = b.Size(ctx) // there is no range of no bytes to ask for, but an absent blob must show
		return 0, err
	case tag != nil && off >= size:
		return 0, io.EOF
	default:
		n, err := b.read(ctx, p, off)
		if err == io.EOF {
			return n, io.EOF
		}
		return n, opError("read", b.key, err)
	}
	return 0, opError("read", b.key, err)
}

// read fills p, each try from where the one before it broke off.
func (b *blob) read(ctx context.Context, p []byte, off int64) (done int, err error) {
	_, err = b.s.call(ctx, func(ctx context.Context, pr *progress) error {
		n, err := b.fetch(ctx, pr, p[done:], off+int64(done))
		done += n
		return err
	})
	switch {
	case code(err) == "InvalidRange" || status(err) == http.StatusRequestedRangeNotSatisfiable:
		return done, io.EOF // off is at the end or beyond
	case refused(err):
		return done, errReplaced
	}
	return done, notStored(err)
}

// fetch is one request for p at off.
func (b *blob) fetch(ctx context.Context, pr *progress, p []byte, off int64) (int, error) {
	tag, _, err := b.known(ctx)
	if err != nil {
		return 0, err
	}
	out, err := b.s.client.GetObject(ctx, &s3.GetObjectInput{
		Bucket: &b.s.bucket, Key: b.s.object(b.key), IfMatch: tag,
		Range: aws.String(fmt.Sprintf("bytes=%d-%d", off, off+int64(len(p))-1)),
	})
	if err != nil {
		return 0, err
	}
	defer out.Body.Close()
	if tag != nil && aws.ToString(out.ETag) != *tag {
		return 0, errReplaced // by a server that ignores the condition
	}
	size, err := answered(out, off)
	if err != nil {
		return 0, err
	}
	b.learn(out.ETag, size)
	want := int(min(int64(len(p)), size-off))
	n, err := io.ReadFull(pr.reader(out.Body), p[:want])
	if err != nil {
		return n, &bodyError{err}
	}
	if want < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// answered checks that an answer begins at off, and returns the size of the whole object.
func answered(out *s3.GetObjectOutput, off int64) (size int64, err error) {
	if out.ContentRange == nil {
		// The whole object, as some servers answer when the range has all of it.
		if off != 0 {
			return 0, errors.New("the server ignores ranges")
		}
		return aws.ToInt64(out.ContentLength), nil
	}
	var first, last int64
	_, err = fmt.Sscanf(strings.ToLower(*out.ContentRange), "bytes %d-%d/%d", &first, &last, &size)
	if err != nil || first != off || last < first || size <= last {
		return 0, fmt.Errorf("asked for bytes from %d, the server answers %q", off, *out.ContentRange)
	}
	return size, nil
}

func (b *blob) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}
