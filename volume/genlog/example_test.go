package genlog_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// A record with one owner: the op finds its own effect, and refuses every other owner.
func Example() {
	type door struct {
		Owner string `json:"owner"`
	}
	errTaken := errors.New("taken")
	enter := func(who string) genlog.Op[door] {
		return genlog.Op[door]{Name: "enter", Apply: func(d door) (door, bool, error) {
			switch d.Owner {
			case who:
				return d, false, nil
			case "":
				return door{Owner: who}, true, nil
			}
			return d, false, fmt.Errorf("%w by %s", errTaken, d.Owner)
		}}
	}
	ctx := context.Background()
	log := genlog.New[door](memstore.New(), "v1/doors/acme/front/")
	if _, err := log.Create(ctx, door{}); err != nil {
		fmt.Println(err)
	}
	for _, who := range []string{"ada", "ada", "bob"} {
		g, err := log.Append(ctx, enter(who))
		fmt.Println(g.Number, errors.Is(err, errTaken), err)
	}
	// Output:
	// 2 false <nil>
	// 2 false <nil>
	// 0 true append "enter" to v1/doors/acme/front/: taken by ada
}
