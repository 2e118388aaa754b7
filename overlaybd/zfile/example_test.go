package zfile_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/sandvol/sandvol/overlaybd/zfile"
)

func Example() {
	var stored bytes.Buffer
	w, err := zfile.NewWriter(&stored, zfile.Options{Codec: zfile.Zstd})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := w.Write([]byte(strings.Repeat("a sector of a layer. ", 1000))); err != nil {
		log.Fatal(err) // and drop w: Close would make a file that looks whole
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}

	r, err := zfile.Open(bytes.NewReader(stored.Bytes()), int64(stored.Len()))
	if err != nil {
		log.Fatal(err)
	}
	p := make([]byte, 20)
	if _, err := r.ReadAt(p, 2100); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes, at 2100: %q\n", r.Size(), p)
	fmt.Println("damage:", r.Verify(context.Background()))
	// Output:
	// 21000 bytes, at 2100: "a sector of a layer."
	// damage: <nil>
}
