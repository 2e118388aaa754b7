package storetest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/volume/store/memstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// A put whose reply is lost has taken effect all the same: whoever gets such an error reads back.
func ExampleFaulty() {
	ctx := context.Background()
	s := storetest.Faulty(memstore.New(), storetest.Nth(storetest.OpPutIfAbsent, 1, storetest.ErrorAfter))
	err := s.PutIfAbsent(ctx, "key", []byte("body"))
	fmt.Println("injected:", errors.Is(err, storetest.ErrInjected))
	body, err := s.Get(ctx, "key")
	fmt.Printf("%s %v\n", body, err)
	// Output:
	// injected: true
	// body <nil>
}

func ExampleTrace() {
	ctx := context.Background()
	s := storetest.Trace(memstore.New())
	_ = s.PutIfAbsent(ctx, "key", nil)
	_, _ = s.Get(ctx, "key")
	fmt.Println(s.Count(), "requests in", s.Rounds(), "rounds, writes:", s.Count(storetest.OpPutIfAbsent))
	// Output: 2 requests in 2 rounds, writes: 1
}
