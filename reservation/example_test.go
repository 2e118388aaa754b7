package reservation_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/sandvol/sandvol/reservation"
)

func Example() {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := reservation.New()
	s, _, _ = s.Acquire(reservation.Grant{ID: "grant-1", Owner: "sandbox-1", Node: "node-a", At: now})
	s, _, _ = s.Mounted(s.Epoch, "sandbox-1")

	_, _, err := s.Acquire(reservation.Grant{ID: "grant-2", Owner: "sandbox-2", Node: "node-b", At: now})
	fmt.Println(errors.Is(err, reservation.ErrConflict), err)

	// The owner pauses and resumes on another node. What it could still publish from the first one is fenced off.
	s, _, _ = s.Pause(s.Epoch, "sandbox-1", now)
	before := s.Epoch
	s, _, _ = s.Acquire(reservation.Grant{ID: "grant-3", Owner: "sandbox-1", Node: "node-b", At: now})
	fmt.Println(errors.Is(s.Check(before, "sandbox-1"), reservation.ErrFenced), s.Check(s.Epoch, "sandbox-1"))
	// Output:
	// true cannot acquire: the volume is held by sandbox-1 on node node-a, phase mounted, epoch 1, since 2026-01-02T03:04:05Z
	// true <nil>
}
