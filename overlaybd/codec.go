package overlaybd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
	"github.com/sandvol/sandvol/overlaybd/zfile"
)

// Codecs, by the name that a Layer has for how its stored bytes wrap the LSMT stream. Empty: not at all.
const (
	// CodecZFile: in a ZFile, compressed by blocks, each with its own checksum.
	CodecZFile = "zfile"
	// CodecTar: as the one file of a tar file.
	CodecTar = "tar"
	// CodecTarZFile: in a ZFile, which is the one file of a tar file. Images have their layers so.
	CodecTarZFile = "tar+zfile"
	// CodecAuto: what the stored bytes themselves say, found out with a read more each time that the layer is opened. It is
	// for layers at hand. A record names what Detect found, so that damage never changes what bytes are taken for.
	CodecAuto = "auto"
)

func checkCodec(field, codec string) error {
	switch codec {
	case "", CodecZFile, CodecTar, CodecTarZFile, CodecAuto:
		return nil
	}
	return lsmt.Invalid(field, fmt.Sprintf("%q", codec),
		fmt.Sprintf("empty, %q, %q, %q or %q", CodecZFile, CodecTar, CodecTarZFile, CodecAuto))
}

// NewZFileWriter returns a writer that puts the layer written to it into a ZFile on w, with blocks of 4 KiB in LZ4 and
// their checksums: what CodecZFile names. Close completes the file; it does not close w. The same layer gives the same
// bytes. A writer that is given up is dropped without Close.
func NewZFileWriter(w io.Writer) (io.WriteCloser, error) { return zfile.NewWriter(w, zfile.Options{}) }

// wrappedSource is the LSMT stream in a layer's stored bytes.
type wrappedSource struct {
	stream
	stored *layerSource
}

// unwrap returns the LSMT stream of a layer's stored bytes. It takes src over, also when it fails.
func (e *Engine) unwrap(ctx context.Context, l Layer, src Source) (Source, error) {
	if l.Codec == "" {
		return src, nil
	}
	stored := newLayerSource(src, l.UUID, e.readTimeout)
	stored.watch(ctx.Done(), context.Canceled)
	inner, err := openStream(ctx, l, stored, src)
	if err != nil {
		return nil, errors.Join(err, stored.Close())
	}
	return &wrappedSource{inner, stored}, nil
}

func openStream(ctx context.Context, l Layer, stored *layerSource, src Source) (stream, error) {
	remote, ok := src.(RemoteSource)
	if ok && (l.Codec == CodecZFile || l.Codec == CodecTarZFile) {
		return openRemote(ctx, l, stored, remote)
	}
	return unwrapStream(stored, src.Size(), l.Codec)
}

// Local: the stored bytes are watched where they are read, so nobody need watch again.
func (s *wrappedSource) Local() bool { return true }

func (s *wrappedSource) watch(done <-chan struct{}, err error) { s.stored.watch(done, err) }

// Close closes the stored bytes.
func (s *wrappedSource) Close() error { return s.stored.Close() }

// zfileError gives an error of a ZFile this package's class.
func zfileError(err error) error {
	if errors.Is(err, zfile.ErrCorrupt) || errors.Is(err, zfile.ErrNotZFile) {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}
