package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/fuse"
	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/ext4"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/posixstore"
)

// tenant is whose volumes these are.
const tenant = "demo"

// closeTime is how long the end of the demonstration may take.
const closeTime = 30 * time.Second

// demo is one repository, two nodes on it, and what the sandboxes work with.
type demo struct {
	dir     string
	store   *counted
	a, b    *node
	content content
	print   *printer

	kept mount.ID // the snapshot, and what is in it
	set  mount.DriveSet
}

// node is what a host runs on each machine: here both are in one process, with a directory each.
type node struct {
	*mount.Node
	work    string // what is worked in, also by the other node
	volumes *volume.Manager
	closers []func(context.Context) error
}

// content is what is in the drives of the demonstration: files on a file system, or bytes on a block device.
type content interface {
	// fill writes the tree. It syncs nothing: what a sandbox wrote in the last moment before a pause is to be there too.
	fill(ctx context.Context, d mount.Drive) (string, error)
	// prove compares every byte with what fill wrote.
	prove(ctx context.Context, d mount.Drive) (string, error)
	// spoil overwrites one part and deletes another.
	spoil(ctx context.Context, d mount.Drive) (string, error)
	// refused tries to write to a read-only drive and returns how that was refused.
	refused(d mount.Drive) (string, error)
}

func open(ctx context.Context, dir string, t *tree, mounts bool, p *printer) (*demo, error) {
	st, err := posixstore.New(filepath.Join(dir, "repository"))
	if err != nil {
		return nil, err
	}
	d := &demo{dir: dir, store: &counted{Store: st}, print: p}
	start := d.startMounts
	if mounts {
		d.content = &files{tree: t, print: p}
	} else {
		b := &blocks{tree: t, print: p, devices: map[string]overlaybd.Device{}}
		d.content = b
		start = func(ctx context.Context, name string) (*node, error) { return d.startBlocks(ctx, name, b) }
	}
	if d.a, err = start(ctx, "A"); err == nil {
		d.b, err = start(ctx, "B")
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// startMounts starts a node whose sandboxes find their drives mounted below the node's directory.
func (d *demo) startMounts(ctx context.Context, name string) (*node, error) {
	dir := d.nodeDir(name)
	n, repo, err := d.openNode(ctx, name, ext4.Formatter{})
	if err != nil {
		return nil, err
	}
	server, err := fuse.New(filepath.Join(dir, "drives"))
	if err != nil {
		return nil, errors.Join(err, n.close(ctx))
	}
	n.closers = append(n.closers, server.Close)
	root := func(id mount.ID) string { return filepath.Join(dir, "sandboxes", id.Sandbox) }
	n.Node = mount.NewNode(repo, server, mount.WithKernelMounts(root, mount.KernelOptions{}))
	n.closers = append(n.closers, n.Node.Close)
	return n, nil
}

func (d *demo) nodeDir(name string) string { return filepath.Join(d.dir, "node-"+name) }

// openNode opens the repository from one node.
func (d *demo) openNode(ctx context.Context, name string, f volume.Formatter) (*node, *volume.Repository, error) {
	dir := d.nodeDir(name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, nil, err
	}
	cfg := volume.Config{Store: d.store, Dir: filepath.Join(dir, "volumes"), Node: name}
	repo, err := volume.Open(ctx, cfg, volume.WithFormatter(f))
	if err != nil {
		return nil, nil, err
	}
	n := &node{work: d.dir, closers: []func(context.Context) error{func(context.Context) error { return repo.Close() }}}
	if n.volumes, err = repo.Tenant(tenant); err != nil {
		return nil, nil, errors.Join(err, repo.Close())
	}
	return n, repo, nil
}

// close ends what was started, last first: the drives, the server below them, the repository.
func (n *node) close(ctx context.Context) error {
	var errs []error
	for _, f := range slices.Backward(n.closers) {
		errs = append(errs, f(ctx))
	}
	n.closers = nil
	return errors.Join(errs...)
}

// close stops both nodes, also after an interruption. It may be repeated.
func (d *demo) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	var errs []error
	for _, n := range []*node{d.a, d.b} {
		if n != nil {
			errs = append(errs, n.close(ctx))
		}
	}
	return errors.Join(errs...)
}

// counted adds up the bytes that go into a store and come out of it.
type counted struct {
	store.Store
	in, out atomic.Int64
}

func (c *counted) PutIfAbsent(ctx context.Context, key string, body []byte) error {
	c.in.Add(int64(len(body)))
	return c.Store.PutIfAbsent(ctx, key, body)
}

func (c *counted) PutBlob(ctx context.Context, key string, src store.Source) error {
	c.in.Add(src.Size())
	return c.Store.PutBlob(ctx, key, src)
}

func (c *counted) Get(ctx context.Context, key string) ([]byte, error) {
	body, err := c.Store.Get(ctx, key)
	c.out.Add(int64(len(body)))
	return body, err
}

func (c *counted) OpenBlob(ctx context.Context, key string) (store.Blob, error) {
	b, err := c.Store.OpenBlob(ctx, key)
	return countedBlob{b, &c.out}, err
}

type countedBlob struct {
	store.Blob
	out *atomic.Int64
}

func (b countedBlob) ReadRange(ctx context.Context, p []byte, off int64) (int, error) {
	n, err := b.Blob.ReadRange(ctx, p, off)
	b.out.Add(int64(n))
	return n, err
}
