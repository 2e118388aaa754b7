package tarlayer_test

import (
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/sandvol/sandvol/overlaybd/tarlayer"
)

func Example() {
	f, err := os.CreateTemp("", "layer-*.tar")
	if err != nil {
		log.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()

	w, err := tarlayer.NewWriter(f)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := io.Copy(w, strings.NewReader("the bytes of a layer")); err != nil {
		log.Fatal(err)
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	if err := w.WriteHeader(f); err != nil {
		log.Fatal(err)
	}

	info, err := f.Stat()
	if err != nil {
		log.Fatal(err)
	}
	p, err := tarlayer.Open(f, info.Size())
	if err != nil {
		log.Fatal(err)
	}
	layer, err := io.ReadAll(io.NewSectionReader(f, p.Offset, p.Size))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes in a file of %d: %q\n", p.Size, info.Size(), layer)
	// Output: 20 bytes in a file of 3072: "the bytes of a layer"
}
