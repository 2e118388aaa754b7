package s3test_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandvol/sandvol/volume/store/s3store"
	"github.com/sandvol/sandvol/volume/store/s3store/s3test"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServerPassesTheProbe(t *testing.T) {
	srv := s3test.New(t)
	if _, err := s3store.New(t.Context(), srv.Config("p/"), s3store.WithTransport(srv.Latency(0))); err != nil {
		t.Error(err)
	}
}

func TestLatencyEndsWithItsContext(t *testing.T) {
	srv := s3test.New(t)
	s := srv.Open(t, "", s3store.WithTransport(srv.Latency(time.Hour)))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.PutIfAbsent(ctx, "key", []byte("x")); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	s = srv.Open(t, "", s3store.WithTransport(srv.Latency(time.Millisecond)))
	if err := s.PutIfAbsent(t.Context(), "key", []byte("x")); err != nil {
		t.Error(err)
	}
}
