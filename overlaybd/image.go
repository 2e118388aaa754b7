package overlaybd

import (
	"context"
	"io"
	"iter"
)

// ImageRequest says which image is wanted, and for whom.
type ImageRequest struct {
	// Reference is what the importer resolves: a registry reference, or a path in a form that it documents.
	Reference string
	// Size is the wanted size of the disk in bytes, a multiple of SectorSize; 0 leaves it to the importer.
	Size int64
	// Account names on whose behalf the source is asked: credentials of one account never answer for another.
	Account string
}

// ImageInfo is what is known of an image before any of its content is read.
type ImageInfo struct {
	// Reference is the request's, with defaults filled in.
	Reference string
	// Digest is the manifest's, of one platform: "sha256:" and 64 lower-case hex digits.
	Digest string
	// VirtualSize is the size of the disk that the image becomes, in bytes.
	VirtualSize int64
	// Chain has one entry for each layer that the disk will have, bottom first: text that stands for all that the bytes of
	// this layer and those below it depend on (source, layout, size, version of the writer). Two images with equal entries
	// have equal layers up to there.
	Chain []string
}

// Image is a disk that no repository holds yet. An importer resolves one; whoever keeps layers builds those it lacks.
type Image interface {
	Info() ImageInfo
	// Build yields the layers from chain index from upward, bottom first. Files that it needs are made in dir, which it
	// may fill and the caller removes. An error ends the sequence. The layers stay readable until the next is asked for.
	Build(ctx context.Context, o BuildOptions) iter.Seq2[ImageLayer, error]
	Close() error
}

// BuildOptions say how the layers of an image are built.
type BuildOptions struct {
	// Dir is an empty directory for the files that the build needs.
	Dir string
	// From is the first index of the chain that is wanted: those below it exist already.
	From int
	// Progress is told what goes on, from any goroutine and several times a second at most. It may be nil.
	Progress func(ImageProgress)
}

// ImageLayer is one layer of an image, with the bytes to store.
type ImageLayer struct {
	// Layer is complete but for its Key. Its digest is checked by whoever reads the bytes; it is never only believed.
	Layer
	// Open returns the stored bytes from the start. It may be called again, when storing them is repeated.
	Open func(ctx context.Context) (io.ReadCloser, error)
}

// ImageProgress is how far the work on one layer of the source is.
type ImageProgress struct {
	// Layer is an index into the source's layers, and Layers their number.
	Layer, Layers int
	// Digest is the source layer's.
	Digest string
	// Phase is "read", "convert" or "store".
	Phase string
	// Done and Total are bytes of the phase; Total is 0 when it is not known.
	Done, Total int64
}
