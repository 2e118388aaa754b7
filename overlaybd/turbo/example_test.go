package turbo_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/turbo"
)

// A host opens a TurboOCI layer in its Config.Open, where it opens all others.
func Example() {
	engine, err := overlaybd.New(overlaybd.Config{
		Open: func(context.Context, overlaybd.Layer) (overlaybd.Source, error) {
			return openTurbo("../testdata/golden")
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	stack := overlaybd.Stack{VirtualSize: 1 << 30, Layers: []overlaybd.Layer{{Key: "layer1"}}}
	disk, err := engine.OpenReadOnly(context.Background(), stack)
	if err != nil {
		log.Fatal(err)
	}
	defer disk.Close()
	superblock := make([]byte, 512)
	if _, err := disk.ReadAt(superblock, 1024); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("magic of ext4: %x\n", superblock[56:58])
	// Output: magic of ext4: 53ef
}

// openTurbo closes nothing when it fails, for the sake of brevity.
func openTurbo(dir string) (overlaybd.Source, error) {
	gzipMeta, err := os.Open(dir + "/turbo/gzip.meta")
	if err != nil {
		return nil, err
	}
	info, err := gzipMeta.Stat()
	if err != nil {
		return nil, err
	}
	index, err := turbo.OpenIndex(gzipMeta, info.Size())
	if err != nil {
		return nil, err
	}
	targz, err := overlaybd.OpenFile(dir + "/ext4/layer1.tar.gz")
	if err != nil {
		return nil, err
	}
	target, err := index.Open(targz)
	if err != nil {
		return nil, err
	}
	stored, err := overlaybd.OpenFile(dir + "/turbo/ext4.fs.meta")
	if err != nil {
		return nil, err
	}
	meta, err := overlaybd.Unwrap(stored, overlaybd.CodecZFile)
	if err != nil {
		return nil, err
	}
	return turbo.Open(meta, target)
}
