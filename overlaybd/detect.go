package overlaybd

import (
	"errors"
	"io"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
	"github.com/sandvol/sandvol/overlaybd/tarlayer"
	"github.com/sandvol/sandvol/overlaybd/zfile"
)

// Detect returns the codec of the layer in the size bytes of r: it looks for a tar file, then for a ZFile, in the tar
// file if there is one, then for an LSMT file. Anything else is ErrCorrupt. It reads the beginnings only.
func Detect(r io.ReaderAt, size int64) (codec string, err error) {
	head, err := readHead(r, 0, size)
	if err != nil {
		return "", err
	}
	if !tarlayer.IsTar(head) {
		return detectInner(head, 0, "", CodecZFile)
	}
	p, err := tarlayer.Open(r, size)
	if err != nil {
		return "", err
	}
	if head, err = readHead(r, p.Offset, p.Size); err != nil {
		return "", err
	}
	return detectInner(head, p.Offset, CodecTar, CodecTarZFile)
}

func detectInner(head []byte, off int64, bare, compressed string) (string, error) {
	switch {
	case zfile.IsZFile(head):
		return compressed, nil
	case lsmt.IsLSMT(head):
		return bare, nil
	}
	return "", &lsmt.CorruptError{Part: "layer", Offset: off, Detail: "it begins neither as LSMT nor as ZFile or tar"}
}

// readHead reads the first block of a tar file, or what there is of n bytes.
func readHead(r io.ReaderAt, off, n int64) ([]byte, error) {
	head := make([]byte, min(tarlayer.BlockSize, n))
	if m, err := r.ReadAt(head, off); m < len(head) {
		if err == nil || errors.Is(err, io.EOF) {
			return nil, &lsmt.CorruptError{Part: "layer", Offset: off + int64(m), Detail: "the file ends here"}
		}
		return nil, err
	}
	return head, nil
}

// stream is random access to bytes of a known number.
type stream interface {
	io.ReaderAt
	Size() int64
}

// Unwrap returns the LSMT stream in the stored bytes src, whose codec is given, as a Source that closes src. If it
// fails, src stays open. The content of a layer without checksums is as good as its stored bytes.
func Unwrap(src Source, codec string) (Source, error) {
	if err := checkCodec("codec", codec); err != nil {
		return nil, err
	}
	lsmtStream, err := unwrapStream(src, src.Size(), codec)
	if err != nil {
		return nil, err
	}
	return struct {
		stream
		io.Closer
	}{lsmtStream, src}, nil
}

// unwrapStream returns the LSMT stream in the size bytes of r.
func unwrapStream(r io.ReaderAt, size int64, codec string) (stream, error) {
	if codec == CodecAuto {
		var err error
		if codec, err = Detect(r, size); err != nil {
			return nil, err
		}
	}
	inner := io.NewSectionReader(r, 0, size)
	if codec == CodecTar || codec == CodecTarZFile {
		p, err := tarlayer.Open(r, size)
		if err != nil {
			return nil, err
		}
		inner = io.NewSectionReader(r, p.Offset, p.Size)
	}
	if codec != CodecZFile && codec != CodecTarZFile {
		return inner, nil
	}
	z, err := zfile.Open(inner, inner.Size())
	if err != nil {
		return nil, zfileError(err)
	}
	return zfileContent{z}, nil
}

// zfileContent is the content of a ZFile, with errors of this package's class.
type zfileContent struct{ *zfile.Reader }

func (z zfileContent) ReadAt(p []byte, off int64) (int, error) {
	n, err := z.Reader.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		err = zfileError(err)
	}
	return n, err
}
