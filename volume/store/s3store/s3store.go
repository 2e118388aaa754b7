package s3store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"github.com/sandvol/sandvol/volume/store"
)

// idleConns is how many connections are kept open between requests. A mount reads many ranges at once, and a new
// connection costs two or three round trips.
const idleConns = 64

// Store is a store.Store in a bucket. Make one with New. It needs no Close: its connections close when they are idle.
type Store struct {
	client *s3.Client
	caller
	bucket string
	prefix string
	// single is the greatest blob that is put by one request; part is the least size of the parts of greater ones.
	single, part int64
}

var _ store.Store = (*Store)(nil)

// Option changes how New opens a store.
type Option func(*options)

type options struct {
	withoutProbe bool
	transport    http.RoundTripper
}

// WithoutProbe leaves out the check of the bucket, for a process that opens one which another has checked already. On a
// server that ignores conditions, two nodes would then overwrite each other's records.
func WithoutProbe() Option { return func(o *options) { o.withoutProbe = true } }

// WithTransport sends all requests through rt, which the caller owns, instead of a transport of the store's own.
func WithTransport(rt http.RoundTripper) Option { return func(o *options) { o.transport = rt } }

// New opens the store in a bucket. It makes sure that the bucket does what the store relies on, which takes some 25
// small requests in seven rounds and leaves nothing, and fails with an *UnfitError if it does not.
func New(ctx context.Context, cfg Config, opts ...Option) (*Store, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg, err := cfg.resolve(ctx)
	if err != nil {
		return nil, err
	}
	creds := aws.NewCredentialsCache(cfg.Credentials)
	s := &Store{
		client: newClient(cfg, creds, o.transport),
		caller: newCaller(creds),
		bucket: cfg.Bucket, prefix: cfg.Prefix,
		single: defaultSingle, part: defaultPart,
	}
	if !o.withoutProbe {
		if err := s.probe(ctx); err != nil {
			return nil, fmt.Errorf("s3store: open %s: %w", cfg, err)
		}
	}
	return s, nil
}

func newClient(cfg Config, creds aws.CredentialsProvider, rt http.RoundTripper) *s3.Client {
	o := s3.Options{
		Region:       cfg.Region,
		Credentials:  creds,
		UsePathStyle: cfg.PathStyle,
		// Our caller repeats requests: it must know whether an earlier try may have taken effect.
		Retryer: aws.NopRetryer{},
		// Bodies are signed, and so covered by a digest that every server checks. The newer trailing checksums are
		// refused, or kept as part of the object, by servers that do not know them.
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
		Logger:                     logging.Nop{},
	}
	if cfg.Endpoint != "" {
		o.BaseEndpoint = aws.String(cfg.Endpoint)
	}
	if rt != nil {
		// A redirect names another region's endpoint, for which the signature is wrong: it is an error to be shown.
		o.HTTPClient = &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}
	} else {
		o.HTTPClient = awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
			t.MaxIdleConns, t.MaxIdleConnsPerHost = 2*idleConns, idleConns
			t.IdleConnTimeout = time.Minute
		})
	}
	return s3.New(o)
}

// object returns the name of the object of a key.
func (s *Store) object(key string) *string { return aws.String(s.prefix + key) }

func (s *Store) begin(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := store.ValidKey(key); err != nil {
		return err
	}
	if n := len(s.prefix) + len(key); n > store.MaxKey {
		reason := fmt.Sprintf("%d bytes with the bucket's prefix, limit is %d", n, store.MaxKey)
		return &store.KeyError{Key: key, Reason: reason}
	}
	return nil
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	if err := s.begin(ctx, key); err != nil {
		return nil, opError("get", key, err)
	}
	var body bytes.Buffer
	_, err := s.call(ctx, func(ctx context.Context, p *progress) error {
		body.Reset() // of what a try before this one got
		out, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: s.object(key)})
		if err != nil {
			return err
		}
		defer out.Body.Close()
		if _, err := body.ReadFrom(p.reader(out.Body)); err != nil {
			return &bodyError{err}
		}
		if want := aws.ToInt64(out.ContentLength); out.ContentLength != nil && int64(body.Len()) != want {
			return &bodyError{fmt.Errorf("%d bytes of %d", body.Len(), want)}
		}
		return nil
	})
	if err != nil {
		return nil, opError("get", key, notStored(err))
	}
	return body.Bytes(), nil
}

// Delete implements store.Store. In a bucket with versions it hides the object behind a marker, which to all readers and
// writers is the same.
func (s *Store) Delete(ctx context.Context, key string) error {
	err := s.begin(ctx, key)
	if err == nil {
		err = s.remove(ctx, key)
	}
	return opError("delete", key, err)
}

func (s *Store) remove(ctx context.Context, key string) error {
	_, err := s.call(ctx, func(ctx context.Context, _ *progress) error {
		_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.bucket, Key: s.object(key)})
		return err
	})
	if err = notStored(err); errors.Is(err, store.ErrNotExist) {
		return nil
	}
	return err
}
