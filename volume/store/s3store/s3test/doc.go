// Package s3test gives tests a bucket in the same process.
//
//	srv := s3test.New(t)
//	s := srv.Open(t, "prefix/")                                      // an s3store.Store
//	slow := srv.Open(t, "prefix/", s3store.WithTransport(srv.Latency(20*time.Millisecond)))
//
// The server behind it keeps everything in memory, on a loopback address, and ends with the test.
package s3test
