// Package s3test gives tests a bucket in the same process, or a real server over a directory.
//
//	srv := s3test.New(t)
//	s := srv.Open(t, "prefix/")                                      // an s3store.Store
//	slow := srv.Open(t, "prefix/", s3store.WithTransport(srv.Latency(20*time.Millisecond)))
//
//	real := s3test.StartVersitygw(t)
//	real.CreateBucket(t, "bucket")
//	s := real.Open(t, "bucket", "prefix/")
//
// Both listen on a loopback address and end with the test. The first keeps everything in memory.
package s3test
