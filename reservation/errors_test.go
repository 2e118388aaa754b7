package reservation

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// a second attachment is refused with the same error, whoever asks and wherever.
func TestConflictIsTheSameForEveryone(t *testing.T) {
	want := &ConflictError{Op: "acquire", Owner: "s1", Node: "n1", Phase: Mounted, Epoch: 4, Since: t0}
	for _, g := range []Grant{
		fresh("s2", "n1"), fresh("s2", "n2"), fresh("s3", "n9"), {ID: "other", Owner: "s1", Node: "n2"},
	} {
		_, _, err := at(Mounted).Acquire(g)
		var got *ConflictError
		if !errors.As(err, &got) {
			t.Fatalf("%v: %v", g, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	const text = "cannot acquire: the volume is held by s1 on node n1, phase mounted, epoch 4, since 2026-01-02T03:04:05Z"
	if want.Error() != text {
		t.Errorf("message %q, want %q", want, text)
	}
}

func TestFencedErrorNamesBothSides(t *testing.T) {
	_, _, err := at(Paused).Pause(3, "s0", t1)
	var got *FencedError
	if !errors.As(err, &got) {
		t.Fatal(err)
	}
	want := &FencedError{Owner: "s0", Epoch: 3, Holder: "s1", Node: "n1", Phase: Paused, CurrentEpoch: 4, Since: t0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	const text = "epoch 3 of s0 is not current: the volume is held by s1 on node n1, phase paused, epoch 4, " +
		"since 2026-01-02T03:04:05Z"
	if err.Error() != text {
		t.Errorf("message %q, want %q", err, text)
	}
}

func TestErrorsOfAFreeVolume(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{at(Free).Check(4, "s1"),
			"epoch 4 of s1 is not current: the volume is free, epoch 4, released by s1 at 2026-01-02T03:04:05Z"},
		{New().Check(1, "s1"), "epoch 1 of s1 is not current: the volume is free and was never held, epoch 0"},
		{at("melting").Check(4, "s1"), `reservation is in the unknown phase "melting"`},
	} {
		if c.err == nil || c.err.Error() != c.want {
			t.Errorf("message %q, want %q", c.err, c.want)
		}
	}
}

func TestIdentifiersAndReasonsOutsideTheirLimitsAreNamed(t *testing.T) {
	long := strings.Repeat("a", MaxID+1)
	for _, c := range []struct {
		do    transition
		field string
		value string
	}{
		{acquire(Grant{ID: "", Owner: "s", Node: "n"}), "grant id", ""},
		{acquire(Grant{ID: "g", Owner: "s/1", Node: "n"}), "owner", "s/1"},
		{acquire(Grant{ID: "g", Owner: "sé", Node: "n"}), "owner", "sé"},
		{acquire(Grant{ID: "g", Owner: "s", Node: long}), "node", long},
		{takeOver(4, Grant{ID: "g", Owner: "s", Node: "n 1"}), "node", "n 1"},
		{func(s State) (State, bool, error) { return s.TakeOver(4, fresh("s2", "n2"), "") }, "reason", ""},
		{func(s State) (State, bool, error) { return s.TakeOver(4, fresh("s2", "n2"), "\xff") }, "reason", "\xff"},
	} {
		next, changed, err := c.do(at(Mounted))
		var got *InvalidError
		if !errors.Is(err, ErrInvalid) || !errors.As(err, &got) || got.Field != c.field || got.Value != c.value || changed {
			t.Errorf("%s %q: %v", c.field, c.value, err)
			continue
		}
		if diff := cmp.Diff(at(Mounted), next); diff != "" {
			t.Error(diff)
		}
		if len(err.Error()) > 300 {
			t.Errorf("message of %d bytes", len(err.Error()))
		}
	}
	if !ValidID(strings.Repeat("aZ09_-", 21)) || !ValidID(long[1:]) {
		t.Error("valid identifiers are refused")
	}
}
