package overlaybd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
	"github.com/sandvol/sandvol/overlaybd/zfile"
)

// CodecZFile is the Codec of a layer whose LSMT stream is in a ZFile: compressed by blocks, each with its own checksum.
const CodecZFile = "zfile"

func checkCodec(field, codec string) error {
	if codec != "" && codec != CodecZFile {
		return lsmt.Invalid(field, fmt.Sprintf("%q", codec), fmt.Sprintf("empty or %q", CodecZFile))
	}
	return nil
}

// NewZFileWriter returns a writer that puts the layer written to it into a ZFile on w, with blocks of 4 KiB in LZ4 and
// their checksums: what CodecZFile names. Close completes the file; it does not close w. The same layer gives the same
// bytes. A writer that is given up is dropped without Close.
func NewZFileWriter(w io.Writer) (io.WriteCloser, error) { return zfile.NewWriter(w, zfile.Options{}) }

// zfileSource is the LSMT stream in a ZFile.
type zfileSource struct {
	*zfile.Reader
	stored *layerSource
}

// unwrap returns the LSMT stream of a layer's stored bytes. It takes src over, also when it fails.
func (e *Engine) unwrap(ctx context.Context, l Layer, src Source) (Source, error) {
	if l.Codec == "" {
		return src, nil
	}
	stored := newLayerSource(src, l.UUID, e.readTimeout)
	stored.watch(ctx.Done(), context.Canceled)
	r, err := zfile.Open(stored, src.Size())
	if err != nil {
		return nil, errors.Join(zfileError(err), stored.Close())
	}
	return &zfileSource{r, stored}, nil
}

// ReadAt reads the LSMT stream.
func (s *zfileSource) ReadAt(p []byte, off int64) (int, error) {
	n, err := s.Reader.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		err = zfileError(err)
	}
	return n, err
}

// Local: the stored bytes are watched where they are read, so nobody need watch again.
func (s *zfileSource) Local() bool { return true }

func (s *zfileSource) watch(done <-chan struct{}, err error) { s.stored.watch(done, err) }

// Close closes the stored bytes.
func (s *zfileSource) Close() error { return s.stored.Close() }

// zfileError gives an error of a ZFile this package's class.
func zfileError(err error) error {
	if errors.Is(err, zfile.ErrCorrupt) || errors.Is(err, zfile.ErrNotZFile) {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}
