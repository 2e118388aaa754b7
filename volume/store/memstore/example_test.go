package memstore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// Whoever creates a key first has it.
func Example() {
	ctx := context.Background()
	s := memstore.New()
	fmt.Println("first:", s.PutIfAbsent(ctx, "names/data", []byte("volume 1")))
	err := s.PutIfAbsent(ctx, "names/data", []byte("volume 2"))
	fmt.Println("second is too late:", errors.Is(err, store.ErrExists))
	body, err := s.Get(ctx, "names/data")
	fmt.Printf("%s %v\n", body, err)
	// Output:
	// first: <nil>
	// second is too late: true
	// volume 1 <nil>
}
