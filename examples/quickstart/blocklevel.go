package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume"
)

// blockSize is the unit of what is written and compared on a bare device.
const blockSize = 1 << 20

// startBlocks starts a node whose sandboxes get their drives as bare devices. It takes no rights.
func (d *demo) startBlocks(ctx context.Context, name string, b *blocks) (*node, error) {
	n, repo, err := d.openNode(ctx, name, unformatted{})
	if err != nil {
		return nil, err
	}
	// Nobody writes while a cut is made here, so there is nothing to bring to rest.
	still := func(context.Context, mount.ID) (func() error, error) { return func() error { return nil }, nil }
	n.Node = mount.NewNode(repo, exposer{b, name}, mount.WithFreezer(still))
	n.closers = append(n.closers, n.Node.Close)
	return n, nil
}

// unformatted is a Formatter of volumes that hold no file system: a label, and nothing else.
type unformatted struct{}

func (unformatted) Version() string             { return "quickstart-unformatted/1" }
func (unformatted) Check(context.Context) error { return nil }
func (unformatted) Format(_ context.Context, dev overlaybd.Device) error {
	label := make([]byte, overlaybd.SectorSize)
	copy(label, "sandvol quickstart: no file system here")
	_, err := dev.WriteAt(label, 0)
	return err
}

// blocks is content as blocks of a bare device: the tree as a tar stream, from the second block on.
type blocks struct {
	tree  *tree
	print *printer
	sums  [][sha256.Size]byte // by block

	mu      sync.Mutex
	devices map[string]overlaybd.Device // by exposed path
}

func (b *blocks) device(d mount.Drive) overlaybd.Device {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.devices[d.Device]
}

// exposer offers a device to this process only, under the node's name and its own.
type exposer struct {
	*blocks
	node string
}

type exposure struct {
	*blocks
	path string
}

func (x exposer) Expose(_ context.Context, name string, dev overlaybd.Device, _ bool) (mount.Exposure, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	path := filepath.Join(x.node, name)
	x.devices[path] = dev
	return exposure{x.blocks, path}, nil
}

func (x exposure) Path() string  { return x.path }
func (x exposure) Resize() error { return nil }

func (x exposure) Close(context.Context) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.devices, x.path)
	return nil
}

func (b *blocks) fill(ctx context.Context, d mount.Drive) (string, error) {
	b.sums = nil
	r, w := io.Pipe()
	var writer sync.WaitGroup
	writer.Go(func() { w.CloseWithError(b.tar(ctx, w)) })
	defer writer.Wait()
	defer r.Close() // ends the writer, if the reader gives up
	dev, buf := b.device(d), make([]byte, blockSize)
	for {
		n, err := io.ReadFull(r, buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return "", err
		}
		clear(buf[n:])
		b.sums = append(b.sums, sha256.Sum256(buf))
		if _, err := dev.WriteAt(buf, b.offset(len(b.sums)-1)); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s files, %s, as %d blocks", countText(b.tree.files), bytesText(b.tree.bytes), len(b.sums)), nil
}

func (b *blocks) offset(i int) int64 { return int64(i+1) * blockSize }

// tar writes the tree as one stream.
func (b *blocks) tar(ctx context.Context, w io.Writer) error {
	t := tar.NewWriter(w)
	done, copied := 0, int64(0)
	for _, e := range b.tree.entries {
		if !e.mode.IsRegular() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := b.tarFile(t, e); err != nil {
			return err
		}
		done, copied = done+1, copied+e.size
		b.print.progress(done, b.tree.files, copied)
	}
	return t.Close()
}

func (b *blocks) tarFile(t *tar.Writer, e entry) error {
	f, err := b.tree.open(e)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := t.WriteHeader(&tar.Header{Name: e.name, Mode: int64(e.mode.Perm()), Size: e.size}); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return err
}

func (b *blocks) prove(ctx context.Context, d mount.Drive) (string, error) {
	dev, buf := b.device(d), make([]byte, blockSize)
	for i, want := range b.sums {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if _, err := dev.ReadAt(buf, b.offset(i)); err != nil {
			return "", err
		}
		if sha256.Sum256(buf) != want {
			return "", &differenceError{fmt.Sprintf("block at %d", b.offset(i)), "has other content"}
		}
	}
	return fmt.Sprintf("%s blocks, each sha256 equal", countText(len(b.sums))), nil
}

// spoil overwrites every third block and discards every third.
func (b *blocks) spoil(ctx context.Context, d mount.Drive) (string, error) {
	dev, junk := b.device(d), bytes.Repeat([]byte("changed!"), blockSize/8)
	overwritten, discarded := 0, 0
	for i := range b.sums {
		err := ctx.Err()
		switch {
		case err != nil:
		case i%3 == 0:
			_, err = dev.WriteAt(junk, b.offset(i))
			overwritten++
		case i%3 == 1:
			err = dev.Discard(b.offset(i), blockSize)
			discarded++
		}
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s blocks overwritten, %s discarded", countText(overwritten), countText(discarded)), nil
}

func (b *blocks) refused(d mount.Drive) (string, error) {
	_, err := b.device(d).WriteAt(make([]byte, overlaybd.SectorSize), 0)
	if !errors.Is(err, overlaybd.ErrReadOnly) {
		return "", fmt.Errorf("want a refusal, got %w", noError(err))
	}
	return err.Error(), nil
}

var _ volume.Formatter = unformatted{}
