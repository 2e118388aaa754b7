package s3store_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/s3store"
)

// On AWS, Config{Bucket: "volumes"} is enough: the region and the credentials come from the environment.
func ExampleNew() {
	backend := s3mem.New()
	if err := backend.CreateBucket("volumes"); err != nil {
		fmt.Println(err)
		return
	}
	srv := httptest.NewServer(gofakes3.New(backend).Server())
	defer srv.Close()
	ctx := context.Background()
	s, err := s3store.New(ctx, s3store.Config{
		Bucket: "volumes", Prefix: "prod/", Region: "us-east-1", Endpoint: srv.URL, PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("the user's", "own", ""),
	}, s3store.WithoutProbe()) // which this server would not pass
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.PutIfAbsent(ctx, "names/data", []byte("volume 1")))
	body, err := s.Get(ctx, "names/data")
	fmt.Printf("%s %v\n", body, err)
	fmt.Println(errors.Is(s.PutIfAbsent(ctx, "names/data", nil), store.ErrExists))
	// Output:
	// <nil>
	// volume 1 <nil>
	// true
}

// A bucket whose server cannot keep one writer from replacing what another wrote is refused.
func ExampleUnfitError() {
	backend := s3mem.New()
	if err := backend.CreateBucket("volumes"); err != nil {
		fmt.Println(err)
		return
	}
	srv := httptest.NewServer(gofakes3.New(backend).Server())
	defer srv.Close()
	_, err := s3store.New(context.Background(), s3store.Config{
		Bucket: "volumes", Region: "us-east-1", Endpoint: srv.URL, PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("the user's", "own", ""),
	})
	var unfit *s3store.UnfitError
	if errors.As(err, &unfit) {
		fmt.Println(unfit.Fault)
		fmt.Println(unfit.Advice)
	}
	// Output:
	// it replaces an object when an upload in parts is completed
	// use a server that checks If-None-Match on PutObject and CompleteMultipartUpload atomically
}
