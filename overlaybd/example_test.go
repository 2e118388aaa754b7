package overlaybd_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"

	"github.com/sandvol/sandvol/overlaybd"
)

// A disk is written, its content becomes a layer, and the layer is all that a second disk needs to start from it.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "disk-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	layerFile := dir + "/published"
	engine, err := overlaybd.New(overlaybd.Config{
		Open: func(context.Context, overlaybd.Layer) (overlaybd.Source, error) { return overlaybd.OpenFile(layerFile) },
	})
	if err != nil {
		log.Fatal(err)
	}

	disk, err := engine.OpenWritable(ctx, dir+"/upper", overlaybd.Stack{VirtualSize: 64 << 30})
	if err != nil {
		log.Fatal(err)
	}
	sector := bytes.Repeat([]byte("sandvol!"), overlaybd.SectorSize/8)
	if _, err := disk.WriteAt(sector, 1<<30); err != nil {
		log.Fatal(err)
	}
	layers, err := disk.Seal(ctx, overlaybd.SealOptions{Final: true})
	if err != nil {
		log.Fatal(err)
	}
	var compacted bytes.Buffer
	if err := layers[0].Compact(ctx, &compacted); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(layerFile, compacted.Bytes(), 0o600); err != nil {
		log.Fatal(err)
	}
	if err := disk.Close(); err != nil {
		log.Fatal(err)
	}

	published := overlaybd.Layer{Key: "first", Size: int64(compacted.Len()), UUID: layers[0].UUID}
	child, err := engine.OpenReadOnly(ctx, overlaybd.Stack{
		VirtualSize: 64 << 30, Layers: []overlaybd.Layer{published},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer child.Close()
	got := make([]byte, overlaybd.SectorSize)
	if _, err := child.ReadAt(got, 1<<30); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s in a layer of %d bytes\n", got[:8], compacted.Len())
	// Output: sandvol! in a layer of 12800 bytes
}
