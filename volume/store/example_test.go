package store_test

import (
	"context"
	"fmt"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// A key that counts down makes the newest of many records the first of a listing.
func ExampleStore() {
	ctx := context.Background()
	var s store.Store = memstore.New()
	for n := range uint64(3) {
		key := fmt.Sprintf("log/%016x", ^n)
		if err := s.PutIfAbsent(ctx, key, fmt.Appendf(nil, "state %d", n)); err != nil {
			fmt.Println(err)
		}
	}
	for e, err := range s.List(ctx, "log/", "", 1) {
		if err != nil {
			fmt.Println(err)
			break
		}
		body, err := s.Get(ctx, e.Key)
		fmt.Printf("%s: %s %v\n", e.Key, body, err)
	}
	// Output: log/fffffffffffffffd: state 2 <nil>
}

func ExampleValidKey() {
	fmt.Println(store.ValidKey("v1/layers/0192/1-9f3a"))
	fmt.Println(store.ValidKey("v1/../etc/passwd"))
	// Output:
	// <nil>
	// store: invalid key "v1/../etc/passwd": a segment begins with a dot
}
