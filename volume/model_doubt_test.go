package volume_test

import (
	"errors"
	"testing"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// Calls whose outcome was not learned, followed by others: histories that the model reaches only by luck.

// outage makes the n-th change fail, and everything after it in the same step.
func outage(n int, f storetest.Fault) trouble { return trouble{at: n, fault: f, outage: true} }

func inBubble(t *testing.T, f func(k *crashKit)) {
	bubble(t, func(t *testing.T) { f(newCrashKit(t)) })
}

// a publish that took effect without an answer has put the layers into the stack, and a pause of the same cut
// must not take that for its own effect.
func TestPauseAfterPublishInDoubtPauses(t *testing.T) {
	for _, c := range []struct {
		name  string
		then  func(*crashKit, *volume.Sealed) error
		phase reservation.Phase
	}{
		{"pause", func(k *crashKit, c *volume.Sealed) error { return k.s.Pause(k.ctx, c) }, reservation.Paused},
		{"release", func(k *crashKit, c *volume.Sealed) error { return k.s.Release(k.ctx, c) }, reservation.Free},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(k *crashKit) {
				k.attached()
				cut := k.seal(false)
				k.p.line.arm(outage(2, storetest.ErrorAfter))
				if err := k.s.Publish(k.ctx, cut); !isFault(err) {
					k.Fatalf("publish without an answer: %v", err)
				}
				k.p.line.arm(trouble{})
				ok(k.T, c.then(k, k.seal(true)))
				v := must[volume.Volume](k.T)(k.m.Get(k.ctx, k.src))
				if v.Reservation.Phase != c.phase {
					k.Fatalf("after a %s that succeeded the volume is %s", c.name, v.Reservation.Phase)
				}
			})
		})
	}
}

// The same with something written in between: the second cut has layers that are in the stack already, and one that is
// not.
func TestPublishAfterPublishInDoubtTakesUpTheRest(t *testing.T) {
	inBubble(t, func(k *crashKit) {
		k.attached()
		k.seal(false)
		k.writeBlock(3, 'y')
		k.seal(false)
		// Two keys are declared before the doubt, so that nothing makes the session read the record again.
		k.p.line.arm(outage(4, storetest.ErrorAfter))
		if err := k.s.Publish(k.ctx, k.seal(false)); !isFault(err) {
			k.Fatalf("publish without an answer: %v", err)
		}
		k.p.line.arm(trouble{})
		k.writeBlock(4, 'z')
		for try := range 3 {
			err := k.s.Publish(k.ctx, k.seal(false))
			if err == nil {
				break
			}
			if try == 2 {
				k.Fatalf("the session is stuck: %v", err)
			}
		}
		if got := k.look.look(k.ctx).volumes[k.src].Content; got != k.live {
			k.Fatalf("published %v, want %v", got, k.live)
		}
	})
}

// a pause whose answer was lost may have taken effect, or may still. One who gives it up and goes on writing
// must not lose what is flushed from then on.
func TestThawAfterPauseInDoubtLosesNothing(t *testing.T) {
	for _, fault := range []storetest.Fault{storetest.ErrorBefore, storetest.ErrorAfter, storetest.Late} {
		for _, release := range []bool{false, true} {
			t.Run(fault.String(), func(t *testing.T) {
				inBubble(t, func(k *crashKit) { thawInDoubt(k, fault, release) })
			})
		}
	}
}

func thawInDoubt(k *crashKit, fault storetest.Fault, release bool) {
	k.attached()
	leave := k.s.Pause
	if release {
		leave = k.s.Release
	}
	k.p.line.arm(outage(2, fault))
	if err := leave(k.ctx, k.seal(true)); !isFault(err) {
		k.Fatalf("without an answer: %v", err)
	}
	k.p.line.arm(trouble{})
	if err := k.s.Thaw(k.ctx); err != nil {
		if fault != storetest.ErrorAfter {
			k.Fatalf("thaw: %v", err)
		}
		// It took effect: the sandbox attaches again and goes on from what was published.
		k.s = nil
		ok(k.T, k.holding())
	}
	k.c.land(k.ctx)
	k.writeBlock(3, 'y')
	ok(k.T, k.s.Device().Flush())
	k.die()
	if k.s == nil {
		k.Fatal("a flush that was acknowledged is gone with its drive")
	}
}

// an unmount whose answer was lost may still arrive, and must not take away the pin of a later mount.
func TestLateUnmountDoesNotUnpinALaterMount(t *testing.T) {
	inBubble(t, func(k *crashKit) {
		k.immutable()
		r := must[*volume.Reader](k.T)(k.m.Pin(k.ctx, k.src, "sb"))
		k.p.line.arm(outage(1, storetest.Late))
		if err := r.Release(k.ctx); !isFault(err) {
			k.Fatalf("release without an answer: %v", err)
		}
		k.p.line.arm(trouble{})
		k.r = must[*volume.Reader](k.T)(k.m.Pin(k.ctx, k.src, "sb"))
		k.c.land(k.ctx)
		if err := k.m.Delete(k.ctx, k.src); !errors.Is(err, volume.ErrInUse) {
			k.Fatalf("delete of a mounted volume: %v", err)
		}
		ok(k.T, k.r.Release(k.ctx))
		k.r = nil
		ok(k.T, k.m.Delete(k.ctx, k.src))
	})
}
