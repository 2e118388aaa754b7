package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// ErrSource is returned by PutBlob when the source could not be opened or read, or has another size than it said. The
// store is as it was.
var ErrSource = errors.New("store: blob source failed")

// BytesSource returns a source of b, which must not change until it is no longer used.
func BytesSource(b []byte) Source { return bytesSource(b) }

type bytesSource []byte

func (b bytesSource) Open() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
func (b bytesSource) Size() int64                  { return int64(len(b)) }

// FileSource returns a source of the regular file at path, with the size that it has now.
func FileSource(path string) (Source, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("blob source %s: not a regular file but %s", path, fi.Mode())
	}
	return fileSource{path, fi.Size()}, nil
}

type fileSource struct {
	path string
	size int64
}

func (f fileSource) Open() (io.ReadCloser, error) { return os.Open(f.path) }
func (f fileSource) Size() int64                  { return f.size }

// copyChunk is how much is copied between two looks at the context.
const copyChunk = 1 << 20

// CopySource writes the bytes of src to w. It fails with ErrSource when they cannot be had or are not exactly
// src.Size(), with the context's error when ctx ends, and with w's own error otherwise.
func CopySource(ctx context.Context, w io.Writer, src Source) error {
	r, err := src.Open()
	if err != nil {
		return sourceError(err)
	}
	err = copyExactly(ctx, w, r, src.Size())
	// A source that cannot be closed may not have delivered what it holds.
	if cerr := r.Close(); err == nil && cerr != nil {
		err = sourceError(cerr)
	}
	return err
}

func copyExactly(ctx context.Context, w io.Writer, r io.Reader, size int64) error {
	// One byte more than there should be is asked for, so that a longer source shows.
	in := &sourceReader{r: io.LimitReader(r, size+1)}
	var n int64
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, err := io.CopyN(w, in, copyChunk)
		n += m
		if in.err != nil {
			return sourceError(in.err)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if n > size {
		return fmt.Errorf("%w: more than the %d bytes it said", ErrSource, size)
	}
	if n < size {
		return fmt.Errorf("%w: %d bytes, said %d", ErrSource, n, size)
	}
	return nil
}

func sourceError(err error) error { return fmt.Errorf("%w: %w", ErrSource, err) }

// sourceReader remembers a failure to read, which a copy does not tell from a failure to write.
type sourceReader struct {
	r   io.Reader
	err error
}

func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}
