package s3store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/sandvol/sandvol/volume/store"
)

// writerMeta is the object's metadata that names the call that wrote it. When an answer is lost, it tells our own work
// from that of another writer, even one with the same bytes.
const writerMeta = "sandvol-writer"

// ifAbsent is the condition of every write: nothing is stored under the key.
var ifAbsent = aws.String("*")

// PutIfAbsent implements store.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, body []byte) error {
	err := s.begin(ctx, key)
	if err == nil {
		// A copy: a connection may still be reading it after the call has ended with its context.
		err = s.create(ctx, key, bytes.Clone(body), rand.Text())
	}
	return opError("put", key, err)
}

// create makes an object in one request, in the name of writer.
func (s *Store) create(ctx context.Context, key string, body []byte, writer string) error {
	ran, err := s.call(ctx, func(ctx context.Context, p *progress) error {
		_, err := s.client.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &s.bucket, Key: s.object(key), IfNoneMatch: ifAbsent,
			Body: p.body(body), ContentLength: aws.Int64(int64(len(body))),
			Metadata: map[string]string{writerMeta: writer},
		})
		return err
	})
	if refused(err) || transient(err) {
		return s.settle(ctx, key, writer, ran, err)
	}
	return err
}

// settle decides what a failed write came to, by looking whose object is there. A refusal may well be about our own: an
// earlier try took effect and its answer was lost, on the way or in a proxy that repeats requests by itself.
func (s *Store) settle(ctx context.Context, key, writer string, ran int, cause error) error {
	there, err := s.writer(ctx, key)
	switch {
	case err == nil && there == writer:
		return nil
	case err == nil:
		return store.ErrExists
	case ctx.Err() != nil:
		return ctx.Err()
	case refused(cause) && ran == 1 && errors.Is(err, store.ErrNotExist):
		return store.ErrExists // deleted since
	}
	// Nothing is there: our write did not take effect, or will yet, or did and was deleted.
	if !errors.Is(err, store.ErrNotExist) {
		cause = errors.Join(cause, err)
	}
	return fmt.Errorf("may or may not have taken effect: %w", cause)
}

// writer returns in whose name the object of a key was made, "" when it was not by a Store.
func (s *Store) writer(ctx context.Context, key string) (string, error) {
	out, err := s.head(ctx, key)
	if err != nil {
		return "", err
	}
	return out.Metadata[writerMeta], nil
}

// head asks about an object.
func (s *Store) head(ctx context.Context, key string) (*s3.HeadObjectOutput, error) {
	var out *s3.HeadObjectOutput
	_, err := s.call(ctx, func(ctx context.Context, _ *progress) (err error) {
		out, err = s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.bucket, Key: s.object(key)})
		return err
	})
	if status(err) != http.StatusNotFound {
		return out, err
	}
	// An answer to HEAD has no code. Before nothing is taken for absent, the bucket must be there.
	_, err = s.call(ctx, func(ctx context.Context, _ *progress) error {
		_, err := s.client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &s.bucket})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", s.bucket, err)
	}
	return nil, store.ErrNotExist
}

// PutBlob implements store.Store. A blob above 16 MiB goes up in parts, which are repeated one by one. The source is
// opened once, unless other writers get in the way.
func (s *Store) PutBlob(ctx context.Context, key string, src store.Source) error {
	err := s.begin(ctx, key)
	if err == nil {
		err = s.putBlob(ctx, key, src)
	}
	return opError("put blob", key, err)
}

func (s *Store) putBlob(ctx context.Context, key string, src store.Source) error {
	if src.Size() > s.single {
		return s.putParts(ctx, key, src)
	}
	// Whole in memory: it is signed before it is sent, and can be sent again without its source.
	body := bytes.NewBuffer(make([]byte, 0, max(0, src.Size())+1))
	if err := store.CopySource(ctx, body, src); err != nil {
		return err
	}
	return s.create(ctx, key, body.Bytes(), rand.Text())
}
