package posixstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/posixstore"
)

func ExampleNew() {
	root, err := os.MkdirTemp("", "store")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)
	ctx := context.Background()
	a, err := posixstore.New(root)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(a.PutIfAbsent(ctx, "names/data", []byte("volume 1")))

	// Another process, or another node that mounts the directory.
	b, err := posixstore.New(root)
	if err != nil {
		fmt.Println(err)
		return
	}
	body, err := b.Get(ctx, "names/data")
	fmt.Printf("%s %v\n", body, err)
	fmt.Println(errors.Is(b.PutIfAbsent(ctx, "names/data", nil), store.ErrExists))
	// Output:
	// <nil>
	// volume 1 <nil>
	// true
}
