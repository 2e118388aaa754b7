package s3store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"

	"golang.org/x/sync/errgroup"

	"github.com/sandvol/sandvol/volume/store"
)

const (
	// probeDir is where the probe works: no key begins with a dot, so that no listing shows what is there.
	probeDir = ".probe/"
	// probeWriters is how many want the same object at once. A server that checks first and writes then can be lucky
	// with few.
	probeWriters = 8
)

const (
	adviceServer   = "use a server that checks If-None-Match on PutObject and CompleteMultipartUpload atomically"
	adviceVersions = "use a bucket without versions and without object lock"
	adviceStale    = "use a server that shows every write at once, and no cache in front of it"
)

// probe makes sure that the bucket does what a Store promises. An error that is not an *UnfitError says that the probe
// could not be made: the server is away, or does not let us.
func (s *Store) probe(ctx context.Context) error {
	id := rand.Text()
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.probing(gctx, probeDir+id+"-put", s.probePut) })
	group.Go(func() error { return s.probing(gctx, probeDir+id+"-parts", s.probeParts) })
	return group.Wait()
}

// probing runs one half of the probe, and removes its object whatever comes of it.
func (s *Store) probing(ctx context.Context, key string, half func(context.Context, string) error) error {
	err := half(ctx, key)
	if status(err) == http.StatusNotImplemented {
		err = &UnfitError{"it does not implement what is needed: " + err.Error(), adviceServer}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	if rerr := s.remove(ctx, key); err == nil && rerr != nil {
		err = fmt.Errorf("remove the probe: %w", rerr)
	}
	return err
}

// probePut checks single writes: one of many writers wins, all see it, and after a removal there is a place again.
func (s *Store) probePut(ctx context.Context, key string) error {
	if err := s.probeRace(ctx, key); err != nil {
		return err
	}
	if err := s.probeListed(ctx, key); err != nil {
		return err
	}
	if err := s.remove(ctx, key); err != nil {
		return fmt.Errorf("remove the probe: %w", err)
	}
	// In a bucket with versions there is a marker now, which must not count as an object.
	err := s.create(ctx, key, []byte(key), rand.Text())
	if errors.Is(err, store.ErrExists) {
		return &UnfitError{"an object that was removed still keeps others from its place", adviceVersions}
	}
	return err
}

func (s *Store) probeRace(ctx context.Context, key string) error {
	writers := make([]string, probeWriters)
	errs := make([]error, probeWriters)
	var group errgroup.Group
	for i := range writers {
		writers[i] = rand.Text()
		group.Go(func() error {
			errs[i] = s.create(ctx, key, []byte(writers[i]), writers[i])
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	winner := ""
	for i, err := range errs {
		switch {
		case errors.Is(err, store.ErrExists):
		case err != nil:
			return fmt.Errorf("write the probe: %w", err)
		case winner != "":
			return &UnfitError{"it lets two writers create the same object", adviceServer}
		default:
			winner = writers[i]
		}
	}
	there, err := s.writer(ctx, key)
	switch {
	case err != nil && !errors.Is(err, store.ErrNotExist):
		return fmt.Errorf("read the probe: %w", err)
	case there == "" && err == nil:
		return &UnfitError{"it does not keep the metadata of objects", "use a server that keeps x-amz-meta headers"}
	case err != nil || there != winner:
		return &UnfitError{"what is stored is not what the one successful writer wrote", adviceServer}
	}
	return nil
}

// probeListed checks that a listing shows what was just written, which also takes a permission of its own.
func (s *Store) probeListed(ctx context.Context, key string) error {
	for out, err := range s.pages(ctx, listing{prefix: key}) {
		if err != nil {
			return fmt.Errorf("list the probe: %w", err)
		}
		if len(out.Contents) == 1 {
			return nil
		}
	}
	return &UnfitError{"a listing does not show what was just written", adviceStale}
}

// probeParts checks that an upload in parts cannot be completed over an object.
func (s *Store) probeParts(ctx context.Context, key string) error {
	if err := s.create(ctx, key, []byte(key), rand.Text()); err != nil {
		return fmt.Errorf("write the probe: %w", err)
	}
	err := s.upload(ctx, key, store.BytesSource([]byte("replaced")))
	switch {
	case err == nil:
		return &UnfitError{"it replaces an object when an upload in parts is completed", adviceServer}
	case errors.Is(err, store.ErrExists):
		return nil
	}
	return fmt.Errorf("upload the probe in parts: %w", err)
}
