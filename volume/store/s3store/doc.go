// Package s3store is a store.Store in a bucket of S3, or of a server that speaks its protocol.
//
//	s, err := s3store.New(ctx, s3store.Config{Bucket: "volumes", Prefix: "prod/", Region: "eu-central-1"})
//
// A record or blob is one object, called by the prefix and the key. Any number of processes on any number of nodes use
// a bucket together; nothing else coordinates them.
//
// # How a write is made once
//
// Every write has the condition If-None-Match: *, also the completion of an upload in parts, so that the server itself
// picks the one winner among many writers. Requests are repeated when they fail, and then the condition turns on its
// author: the first try took effect, its answer was lost, and the second is refused. So each call puts a random name
// into the object's metadata, as x-amz-meta-sandvol-writer, and after a refusal, or at the end of all tries without an
// answer, reads back whose object is there:
//
//	its own          the write succeeded
//	another's        ErrExists
//	none, refused    ErrExists if there was one try: the object was deleted since
//	none             an error: the write may yet take effect
//
// Blobs above 16 MiB go up in parts of at least 8 MiB, four at once, each repeated alone; an upload that fails is
// aborted. It holds five parts in memory.
//
// Faults that may pass are tried again, six times in all, after pauses that grow, differ by chance, and are at least
// what Retry-After asks for. A try in which no byte moves for 30 seconds has failed. A context ends all of it at once.
//
// # What New checks
//
// Unless WithoutProbe is given, New makes sure that one of several writers wins, on single writes and on uploads in
// parts; that metadata is kept; that a listing shows what was just written; and that a deleted object leaves its place
// free. It works on objects below ".probe/", which no key can name, and removes them. A bucket that fails is refused
// with an *UnfitError, which says what to do.
//
// # What the bucket must be like
//
//   - No lifecycle rule may expire or archive objects below the prefix: what expires is lost, and what is archived is
//     too slow. One rule is wanted: AbortIncompleteMultipartUpload after some days, for the parts that dead processes
//     left. Nobody sees them, and they are paid for.
//   - On AWS, versioning does no harm, but a delete frees nothing until a rule for noncurrent versions does. There are
//     servers on which the marker of a delete keeps the place taken, or on which versioning turns conditions off, as it
//     does to the overwrite protection of Alibaba OSS. The probe finds them, if versioning is on when it runs.
//   - No object lock or retention: they refuse deletes, and so nothing is ever collected.
//   - Nobody else writes below the prefix, replication from another bucket included, and no cache is in front: a stale
//     answer is a lost write.
//   - No directory bucket, which lists in another order, and no encryption with keys that come with each request.
//
// # Permissions
//
// On the objects: s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload. On the bucket: s3:ListBucket,
// without which an absent key is shown as a lack of permission, and is an error here.
//
// Credentials come from Config.Credentials or the default chain of the AWS SDK. They are used until they expire; when
// the server says sooner that they have, they are asked for again, once in a call. They are in no error, and in no log:
// this package logs nothing.
package s3store
