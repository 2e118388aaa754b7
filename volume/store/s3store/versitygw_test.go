package s3store_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/s3store"
	"github.com/sandvol/sandvol/volume/store/s3store/s3test"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// a real server, with the probe before each store.
func TestS3storeOverVersitygwIsAStore(t *testing.T) {
	t.Parallel()
	v := s3test.StartVersitygw(t)
	v.CreateBucket(t, "plain")
	storetest.RunQuick(t, prefixes(func(t testing.TB, prefix string) *s3store.Store {
		return v.Open(t, "plain", prefix)
	}))
	t.Run("Parts", func(t *testing.T) { partsOverVersitygw(t, v) })
	t.Run("ProbeLeavesNothing", func(t *testing.T) { probeOverVersitygw(t, v) })
	t.Run("VersionedBucketIsRefused", func(t *testing.T) { versionsOverVersitygw(t, v) })
}

// probeOverVersitygw looks for what the probes of all the stores before it left.
func probeOverVersitygw(t *testing.T, v *s3test.Versitygw) {
	v.Open(t, "plain", "probed/")
	out, err := v.Client().ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{
		Bucket: aws.String("plain"), Prefix: aws.String("probed/"),
	})
	must(t, err)
	if len(out.Contents) > 0 {
		t.Errorf("the probe left %s", *out.Contents[0].Key)
	}
	wantUploads(t, v, 0)
}

// versionsOverVersitygw: this server takes the marker that a delete leaves in a bucket with versions for an object, and
// refuses the next write. AWS does not.
func versionsOverVersitygw(t *testing.T, v *s3test.Versitygw) {
	v.CreateBucket(t, "versioned")
	_, err := v.Client().PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
		Bucket:                  aws.String("versioned"),
		VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	})
	must(t, err)
	_, err = s3store.New(t.Context(), v.Config("versioned", ""), s3store.WithTransport(v.Transport))
	var unfit *s3store.UnfitError
	if !errors.As(err, &unfit) || !errors.Is(err, s3store.ErrUnfit) || !strings.Contains(unfit.Advice, "versions") {
		t.Errorf("%v, want an *UnfitError about versions", err)
	}
}

// partsOverVersitygw stores a blob in parts of the size that is used, and loses against it.
func partsOverVersitygw(t *testing.T, v *s3test.Versitygw) {
	s := v.Open(t, "plain", "parts/")
	data := bytes.Repeat([]byte("0123456789abcdef"), 2<<20)
	copy(data[len(data)/2:], "the middle")
	must(t, s.PutBlob(t.Context(), "blob", store.BytesSource(data)))
	b, err := s.OpenBlob(t.Context(), "blob")
	must(t, err)
	got := make([]byte, len(data))
	if n, err := b.ReadRange(t.Context(), got, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d, %v, or other ones", n, len(data), err)
	}
	wantUploads(t, v, 0)
}

// wantUploads counts the uploads in parts that are neither completed nor aborted.
func wantUploads(t *testing.T, v *s3test.Versitygw, want int) {
	t.Helper()
	out, err := v.Client().ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: aws.String("plain")})
	must(t, err)
	if len(out.Uploads) != want {
		t.Errorf("%d uploads are left, want %d", len(out.Uploads), want)
	}
}
