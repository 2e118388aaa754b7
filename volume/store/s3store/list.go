package s3store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/sandvol/sandvol/volume/store"
)

// page is the most entries that a server puts into one answer.
const page = 1000

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		if err := beginList(ctx, prefix); err != nil {
			yield(store.Entry{}, opError("list", prefix, err))
			return
		}
		if after > prefix && !strings.HasPrefix(after, prefix) {
			return // all keys with the prefix are smaller
		}
		left := limit
		for out, err := range s.pages(ctx, listing{prefix: prefix, after: after, limit: limit}) {
			if err != nil {
				yield(store.Entry{}, opError("list", prefix, err))
				return
			}
			for _, o := range out.Contents {
				key := strings.TrimPrefix(aws.ToString(o.Key), s.prefix)
				// What others put into the bucket is no key of ours.
				if key <= after || store.ValidKey(key) != nil {
					continue
				}
				e := store.Entry{Key: key, Size: aws.ToInt64(o.Size), Modified: aws.ToTime(o.LastModified)}
				if !yield(e, nil) {
					return
				}
				if left--; left == 0 {
					return
				}
			}
		}
	}
}

// Dirs implements store.Store.
func (s *Store) Dirs(ctx context.Context, prefix, after string, limit int) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := beginList(ctx, prefix); err != nil {
			yield("", opError("list directories", prefix, err))
			return
		}
		l := listing{prefix: prefix, limit: limit, dirs: true}
		if after != "" {
			// '0' follows '/': all that is below after comes before it, and all that is below the next name after it.
			// Servers do not agree on whether "after/" leaves out after itself.
			l.after = prefix + after + "0"
		}
		left, last := limit, ""
		if after != "" {
			last = after + "/"
		}
		for out, err := range s.pages(ctx, l) {
			if err != nil {
				yield("", opError("list directories", prefix, err))
				return
			}
			for _, p := range out.CommonPrefixes {
				dir := strings.TrimPrefix(aws.ToString(p.Prefix), s.prefix+prefix)
				name := strings.TrimSuffix(dir, "/")
				if dir <= last || !store.ValidSegment(name) {
					continue
				}
				last = dir
				if !yield(name, nil) {
					return
				}
				if left--; left == 0 {
					return
				}
			}
		}
	}
}

// listing is what one listing asks for; after is a key.
type listing struct {
	prefix, after string
	limit         int
	dirs          bool // names below the prefix, not keys
}

// pages yields the answers to one listing.
func (s *Store) pages(ctx context.Context, l listing) iter.Seq2[*s3.ListObjectsV2Output, error] {
	in := &s3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: s.object(l.prefix)}
	if l.after > l.prefix {
		in.StartAfter = s.object(l.after)
	}
	if l.dirs {
		in.Delimiter = aws.String("/")
	}
	if 0 < l.limit && l.limit < page {
		in.MaxKeys = aws.Int32(int32(l.limit))
	}
	return func(yield func(*s3.ListObjectsV2Output, error) bool) {
		in := *in // the sequence may be ranged over again
		for last := ""; ; {
			var out *s3.ListObjectsV2Output
			_, err := s.call(ctx, func(ctx context.Context, _ *progress) (err error) {
				out, err = s.client.ListObjectsV2(ctx, &in)
				return err
			})
			if err == nil {
				last, err = checkPage(out, last)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(out, nil) || !aws.ToBool(out.IsTruncated) {
				return
			}
			in.ContinuationToken, in.StartAfter = out.NextContinuationToken, nil
		}
	}
}

// checkPage checks an answer to a listing, and returns its last name; last is that of the answer before. The names must
// follow each other in byte order: a listing in another order would show an old generation as the newest.
func checkPage(out *s3.ListObjectsV2Output, last string) (string, error) {
	switch {
	case out.IsTruncated == nil:
		// Some other document, from a proxy perhaps. To the SDK it is a listing of nothing.
		return "", errors.New("the answer is not a listing")
	case *out.IsTruncated && aws.ToString(out.NextContinuationToken) == "":
		return "", errors.New("the server says that there is more, and not how to ask for it")
	}
	keys, dirs := last, last
	for _, o := range out.Contents {
		key := aws.ToString(o.Key)
		if key <= keys {
			return "", fmt.Errorf("the server lists out of order: %q after %q", key, keys)
		}
		keys = key
	}
	for _, p := range out.CommonPrefixes {
		dir := aws.ToString(p.Prefix)
		// The last name of one answer may be the first of the next, when what is below it was cut in two.
		if dir < dirs {
			return "", fmt.Errorf("the server lists out of order: %q after %q", dir, dirs)
		}
		dirs = dir
	}
	return max(keys, dirs), nil
}

func beginList(ctx context.Context, prefix string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return store.ValidPrefix(prefix)
}
