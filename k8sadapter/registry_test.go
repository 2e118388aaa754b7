package k8sadapter_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandvol/sandvol/k8sadapter"
	"github.com/sandvol/sandvol/volume"
)

// an existing PersistentVolume becomes a volume by two labels and nothing else; its name is the id.
func TestRegisterLabelsAnExistingPV(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	before := w.available("pv")
	v, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: before.Name, Name: "data"})
	must(t, err)
	if v.ID != before.Name || v.Name != "data" || v.Mode != volume.Exclusive || v.Status != volume.StatusReady ||
		v.Size != 50<<30 {
		t.Errorf("volume %+v", v)
	}
	after, err := w.pvs.Get(t.Context(), before.Name, metav1.GetOptions{})
	must(t, err)
	want := map[string]string{k8sadapter.OwnerLabel: w.team(), k8sadapter.NameLabel: "data"}
	if d := cmp.Diff(want, after.Labels); d != "" {
		t.Errorf("labels (-want +got):\n%s", d)
	}
	if d := cmp.Diff(before.Spec, after.Spec); d != "" {
		t.Errorf("the spec was changed:\n%s", d)
	}
	if len(after.Annotations) != 0 {
		t.Errorf("annotations %v, want none: nothing about mounts is kept on the PersistentVolume", after.Annotations)
	}
	for _, name := range []string{"data", ""} {
		again, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: before.Name, Name: name})
		must(t, err)
		if again.Name != "data" {
			t.Errorf("registered again as %q it is named %q, want it as it is", name, again.Name)
		}
	}
}

// What is registered keeps its name: to ask for another is a conflict that says both, and the other name stays free.
func TestAVolumeIsNotRegisteredUnderASecondName(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	v := w.volume(a, "data")
	_, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: v.ID, Name: "other-name"})
	reason(t, err, k8sadapter.NamedOtherwise)
	is(t, err, volume.ErrConflict)
	is(t, err, volume.ErrExists)
	for _, want := range []string{v.ID, `"data"`, `"other-name"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %s", err, want)
		}
	}
	var e *k8sadapter.VolumeError
	if errors.As(err, &e); e.Retryable() {
		t.Error("it is retryable: nothing but a change makes it succeed")
	}
	second := w.available("second")
	_, err = a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: second.Name, Name: "other-name"})
	must(t, err)
}

// Two who register one PersistentVolume under two names at once: one name is given, and the other one is free at once.
func TestRacersWithTwoNamesForOnePVLeaveTheOtherNameFree(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	for round := range 5 {
		pv := w.available(fmt.Sprintf("pv%d", round))
		names := []string{fmt.Sprintf("a%d", round), fmt.Sprintf("b%d", round)}
		errs := make([]error, 2)
		var wg sync.WaitGroup
		for i, name := range names {
			wg.Go(func() {
				_, errs[i] = a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name, Name: name})
			})
		}
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("round %d: errors %v, want one winner", round, errs)
		}
		reason(t, errors.Join(errs...), k8sadapter.NamedOtherwise)
	}
	leases, err := w.leases.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(leases.Items) != 10 {
		t.Errorf("%d leases, want two for each volume: its id and its name", len(leases.Items))
	}
}

// A name that no PersistentVolume can have is a mistake in the call, and is said with what else is wrong with it.
func TestARegistrationIsCheckedAsAWhole(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	for _, pv := range []string{"", "x y", "../x", "Upper", strings.Repeat("a", 254)} {
		_, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv, Name: "-"})
		is(t, err, volume.ErrInvalid)
		for _, want := range []string{`PV "`, `name "-"`} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %v does not say %s", err, want)
			}
		}
	}
	if sent := w.calls.take(); len(sent) != 0 {
		t.Errorf("requests %v", sent)
	}
}

// label values have limits, and a name must be one.
func TestNamesAreLabelValues(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	pv := w.available("pv")
	long := ""
	for len(long) < 64 {
		long += "a"
	}
	for _, name := range []string{long, "a b", "-a", "a-", "a/b", "ä", "_a"} {
		_, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name, Name: name})
		is(t, err, volume.ErrInvalid)
	}
	v, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name, Name: long[:63]})
	must(t, err)
	if v.Name != long[:63] {
		t.Errorf("name %q", v.Name)
	}
}

// the cache says that nobody owns it, the server says who does.
func TestRegisterReadsTheServer(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	pv := w.available("pv")
	// The cache of a second manager, which has not heard of it.
	stale := w.adapter(func(c *k8sadapter.Config) { c.PersistentVolumes = deaf{w.pvs} })
	_, err := a.Register(t.Context(), w.other(), k8sadapter.Registration{PV: pv.Name})
	must(t, err)
	_, err = stale.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name})
	is(t, err, volume.ErrNotFound)
	must(t, stale.Delete(t.Context(), w.other(), pv.Name))
	_, err = stale.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name})
	must(t, err)
	// And the first, whose cache may still say that it is the other's.
	_, err = a.Resolve(t.Context(), w.other(), ask(pv.Name))
	is(t, err, volume.ErrNotFound)
	is(t, a.Delete(t.Context(), w.other(), pv.Name), volume.ErrNotFound)
	must(t, a.Delete(t.Context(), w.team(), pv.Name))
}

func TestNamesAreUniqueInANamespaceOnly(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "data")
	second := w.available("second")
	_, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: second.Name, Name: "data"})
	is(t, err, volume.ErrExists)
	_, err = a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: second.Name, Name: w.name("data")})
	is(t, err, volume.ErrExists) // it is the first one's id
	third := w.create(w.spec("third"))
	_, err = a.Register(t.Context(), w.other(), k8sadapter.Registration{PV: third.Name, Name: "data"})
	must(t, err)
	// A failed registration leaves nothing that keeps the name.
	_, err = a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: second.Name, Name: "free"})
	must(t, err)
}

func TestNamesThatSomebodyElseLabelledAreTaken(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	labelled := w.spec("labelled")
	labelled.Labels = map[string]string{k8sadapter.OwnerLabel: w.team(), k8sadapter.NameLabel: "data"}
	w.create(labelled)
	pv := w.available("pv")
	_, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name, Name: "data"})
	is(t, err, volume.ErrExists)
	twin := w.spec("twin")
	twin.Labels = labelled.Labels
	w.create(twin)
	w.eventually("both are known", func() bool {
		_, err := a.Get(t.Context(), w.team(), "data")
		return errors.Is(err, volume.ErrConflict)
	})
}

// Two things decide who gets a name: the lease, and that a registration which was given up is fenced off.
func TestTwentyRacersForOneNameHaveOneWinner(t *testing.T) {
	w := newWorld(t)
	first, second := w.adapter(nil), w.adapter(nil)
	const racers = 20
	pvs := make([]*corev1.PersistentVolume, racers)
	for i := range pvs {
		pvs[i] = w.available(fmt.Sprintf("pv%d", i))
	}
	errs := make([]error, racers)
	var wg sync.WaitGroup
	for i := range racers {
		a := []*k8sadapter.Adapter{first, second}[i%2]
		wg.Go(func() {
			_, errs[i] = a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pvs[i].Name, Name: "data"})
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			is(t, err, volume.ErrExists)
		}
	}
	list, err := w.pvs.List(t.Context(), metav1.ListOptions{LabelSelector: k8sadapter.OwnerLabel + "=" + w.team()})
	must(t, err)
	if won != 1 || len(list.Items) != 1 {
		t.Errorf("%d winners and %d volumes, want 1 of each", won, len(list.Items))
	}
}

func TestRacersOfTwoNamespacesForOnePVHaveOneWinner(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	for round := range 10 {
		pv := w.available(fmt.Sprintf("pv%d", round))
		errs := make([]error, 2)
		var wg sync.WaitGroup
		for i, ns := range []string{w.team(), w.other()} {
			wg.Go(func() {
				_, errs[i] = a.Register(t.Context(), ns, k8sadapter.Registration{PV: pv.Name, Name: fmt.Sprintf("data%d", round)})
			})
		}
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("round %d: errors %v, want one winner", round, errs)
		}
		is(t, errors.Join(errs...), volume.ErrNotFound)
	}
}

// A registration that died between the lease and the label keeps its name for a moment only, and one that wakes up later
// does not get it.
func TestARegistrationThatDiedIsFenced(t *testing.T) {
	w := newWorld(t)
	dead := w.available("dead")
	asleep := &beforeUpdate{PersistentVolumeInterface: w.pvs, name: dead.Name, asleep: make(chan struct{}), wake: make(chan struct{})}
	sleepy := w.adapter(func(c *k8sadapter.Config) { c.PersistentVolumes = asleep })
	result := make(chan error)
	go func() {
		_, err := sleepy.Register(t.Context(), w.team(), k8sadapter.Registration{PV: dead.Name, Name: "data"})
		result <- err
	}()
	<-asleep.asleep
	a := w.adapter(nil)
	pv := w.available("pv")
	_, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name, Name: "data"})
	must(t, err)
	close(asleep.wake)
	is(t, <-result, volume.ErrExists)
}

// list and get are answered without a request.
func TestListAndGetSendNoRequest(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	for i := range 5 {
		w.volume(a, fmt.Sprintf("v%d", i))
	}
	list := func() (names []string) {
		for v, err := range a.List(t.Context(), w.team(), volume.ListOptions{}) {
			must(t, err)
			names = append(names, v.Name)
		}
		return names
	}
	w.eventually("all five are listed", func() bool { return len(list()) == 5 })
	w.calls.take()
	if d := cmp.Diff([]string{"v0", "v1", "v2", "v3", "v4"}, list()); d != "" {
		t.Errorf("list:\n%s", d)
	}
	for _, ref := range []string{"v3", w.name("v3")} {
		v, err := a.Get(t.Context(), w.team(), ref)
		must(t, err)
		if v.ID != w.name("v3") {
			t.Errorf("%q is %q", ref, v.ID)
		}
	}
	if sent := w.calls.take(); len(sent) > 0 {
		t.Errorf("requests %v, want none", sent)
	}
	var page []string
	for v, err := range a.List(t.Context(), w.team(), volume.ListOptions{After: w.name("v1"), Limit: 2}) {
		must(t, err)
		page = append(page, v.Name)
	}
	if d := cmp.Diff([]string{"v2", "v3"}, page); d != "" {
		t.Errorf("page:\n%s", d)
	}
}

func TestGetFindsWhatWasRegisteredAMomentAgo(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(func(c *k8sadapter.Config) { c.PersistentVolumes = deaf{w.pvs} })
	w.volume(a, "data")
	for _, ref := range []string{"data", w.name("data")} {
		v, err := a.Get(t.Context(), w.team(), ref)
		must(t, err)
		if v.Name != "data" {
			t.Errorf("%q is named %q", ref, v.Name)
		}
	}
}

// what is another namespace's, what does not exist and what cannot exist are the same to the caller, the error
// and the requests, for a mount as for everything else.
func TestForeignMissingAndMalformedAreTheSame(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	foreign := w.available("foreign")
	_, err := a.Register(t.Context(), w.other(), k8sadapter.Registration{PV: foreign.Name, Name: "theirs"})
	must(t, err)
	w.eventually("the cache knows it", func() bool {
		for range a.List(t.Context(), w.other(), volume.ListOptions{}) {
			return true
		}
		return false
	})
	operations := map[string]func(string) error{
		"get":     func(ref string) error { _, err := a.Get(t.Context(), w.team(), ref); return err },
		"delete":  func(ref string) error { return a.Delete(t.Context(), w.team(), ref) },
		"resolve": func(ref string) error { _, err := a.Resolve(t.Context(), w.team(), ask(ref)); return err },
		"in use":  func(ref string) error { _, err := a.InUse(t.Context(), w.team(), ref); return err },
	}
	for name, op := range operations {
		w.calls.take()
		var texts []string
		var sent []map[string]int
		for _, ref := range []string{foreign.Name, "theirs", "missing", "../x", "A b", ""} {
			err := op(ref)
			is(t, err, volume.ErrNotFound)
			sent = append(sent, w.calls.take())
			texts = append(texts, replace(err.Error(), fmt.Sprintf("%q", ref), "REF"))
		}
		for i := range texts {
			if texts[i] != texts[0] || cmp.Diff(sent[i], sent[0]) != "" {
				t.Errorf("%s: %q after %v, and %q after %v", name, texts[i], sent[i], texts[0], sent[0])
			}
		}
	}
}

func TestRegistrationFollowsTheStateTable(t *testing.T) {
	w := newWorld(t)
	claim := func(ns string) *corev1.ObjectReference {
		return &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: ns, Name: "c"}
	}
	cases := []struct {
		name   string
		change func(*corev1.PersistentVolume)
		config func(*k8sadapter.Config)
		want   k8sadapter.Reason
	}{
		{name: "available"},
		{name: "pending", change: func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumePending }},
		{name: "bound here", change: func(pv *corev1.PersistentVolume) {
			pv.Spec.ClaimRef, pv.Status.Phase = claim(w.team()), corev1.VolumeBound
		}},
		{name: "bound elsewhere", want: k8sadapter.BoundElsewhere, change: func(pv *corev1.PersistentVolume) {
			pv.Spec.ClaimRef, pv.Status.Phase = claim(w.other()), corev1.VolumeBound
		}},
		{name: "released", want: k8sadapter.Released,
			change: func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeReleased }},
		{name: "released, accepted", config: func(c *k8sadapter.Config) { c.AcceptReleased = true },
			change: func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeReleased }},
		{name: "failed", want: k8sadapter.Failed,
			change: func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeFailed }},
		{name: "not CSI", want: k8sadapter.NotCSI, change: func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}
		}},
		{name: "block", want: k8sadapter.BlockMode, change: func(pv *corev1.PersistentVolume) {
			block := corev1.PersistentVolumeBlock
			pv.Spec.VolumeMode = &block
		}},
		{name: "driver", want: k8sadapter.DriverRefused,
			change: func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "other.example.com" }},
		{name: "no drivers", want: k8sadapter.DriverRefused, config: func(c *k8sadapter.Config) { c.Drivers = nil }},
		{name: "secret", want: k8sadapter.SecretNamespace, change: func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: w.team(), Name: "s"}
		}},
		{name: "staged", change: func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "sandbox-system", Name: "s"}
		}},
		{name: "staged, publish only", want: k8sadapter.NeedsStaging,
			config: func(c *k8sadapter.Config) { c.PublishOnly = true },
			change: func(pv *corev1.PersistentVolume) {
				pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "sandbox-system", Name: "s"}
			}},
		{name: "driver unknown to the cluster, publish only", want: k8sadapter.NeedsStaging,
			config: func(c *k8sadapter.Config) { c.PublishOnly = true }},
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.T = t
			pv := w.spec(fmt.Sprintf("pv%d", i))
			if c.change != nil {
				c.change(pv)
			}
			w.create(pv)
			_, err := w.adapter(c.config).Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name})
			if c.want == "" {
				must(t, err)
				return
			}
			reason(t, err, c.want)
		})
	}
	_, err := w.adapter(nil).Register(t.Context(), w.team(), k8sadapter.Registration{PV: w.name("nothing")})
	is(t, err, volume.ErrNotFound)
}

func TestATerminatingPVIsShownAndRefused(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	held := w.spec("held")
	held.Finalizers = []string{"example.com/hold"}
	w.create(held)
	loose := w.spec("loose")
	loose.Finalizers = held.Finalizers
	w.create(loose)
	t.Cleanup(func() {
		for _, name := range []string{held.Name, loose.Name} {
			if pv, err := w.pvs.Get(t.Context(), name, metav1.GetOptions{}); err == nil {
				pv.Finalizers = nil
				_, _ = w.pvs.Update(t.Context(), pv, metav1.UpdateOptions{})
			}
		}
	})
	_, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: held.Name})
	must(t, err)
	for _, name := range []string{held.Name, loose.Name} {
		must(t, w.pvs.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	_, err = a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: loose.Name})
	reason(t, err, k8sadapter.Deleting)
	_, err = a.Resolve(t.Context(), w.team(), ask(held.Name))
	reason(t, err, k8sadapter.Deleting)
	var status *volume.StatusError
	if !errors.As(err, &status) || status.Status != volume.StatusDeleting {
		t.Errorf("error %v, want a StatusError", err)
	}
	w.eventually("it is shown as deleting", func() bool {
		v, err := a.Get(t.Context(), w.team(), held.Name)
		return err == nil && v.Status == volume.StatusDeleting
	})
}

func TestAPVOfTheSameNameIsNotTheSameVolume(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	v := w.volume(a, "data", corev1.ReadWriteMany)
	r, err := a.Resolve(t.Context(), w.team(), ask("data"))
	must(t, err)
	must(t, w.pvs.Delete(t.Context(), v.ID, metav1.DeleteOptions{}))
	again := w.spec("data", corev1.ReadWriteMany)
	w.create(again)
	is(t, a.Confirm(t.Context(), r.Token), volume.ErrNotFound)
	// Not even if it is registered by the same name.
	_, err = a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: v.ID, Name: "data"})
	must(t, err)
	is(t, a.Confirm(t.Context(), r.Token), volume.ErrNotFound)
}

// what the guide shows is registered without a warning about its reclaim policy; another policy is warned about.
func TestOtherReclaimPoliciesAreWarnedAbout(t *testing.T) {
	w := newWorld(t)
	for policy, want := range map[corev1.PersistentVolumeReclaimPolicy]bool{
		corev1.PersistentVolumeReclaimRetain: false, corev1.PersistentVolumeReclaimDelete: true,
	} {
		log := &logged{}
		a := w.adapter(nil, k8sadapter.WithLogger(log.logger()))
		pv := w.spec("pv-"+map[bool]string{true: "d", false: "r"}[want], corev1.ReadWriteMany)
		pv.Spec.PersistentVolumeReclaimPolicy = policy
		w.create(pv)
		_, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name})
		must(t, err)
		if got := log.has("reclaimPolicy"); got != want {
			t.Errorf("%s: warned %t, want %t", policy, got, want)
		}
	}
}

func TestAnAdapterAnswersOnlyWhenItKnowsAll(t *testing.T) {
	w := newWorld(t)
	a, err := k8sadapter.New(w.config())
	must(t, err)
	defer a.Close()
	_, err = a.Get(t.Context(), w.team(), "x")
	is(t, err, volume.ErrUnavailable)
	for _, err := range a.List(t.Context(), w.team(), volume.ListOptions{}) {
		is(t, err, volume.ErrUnavailable)
	}
	_, err = k8sadapter.New(k8sadapter.Config{})
	is(t, err, volume.ErrInvalid)
	must(t, a.Start(t.Context()))
	must(t, a.Start(t.Context())) // it has begun, and knows all
}

// After Close nothing keeps the cache up to date: what it still knows is not answered. What is resolved can be undone.
func TestAClosedAdapterAnswersNothingFromItsCache(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "data")
	w.eventually("it is listed", func() bool { _, err := a.Get(t.Context(), w.team(), "data"); return err == nil })
	r, err := a.Resolve(t.Context(), w.team(), ask("data"))
	must(t, err)
	a.Close()
	a.Close()
	_, err = a.Get(t.Context(), w.team(), "data")
	is(t, err, k8sadapter.ErrClosed)
	for _, err := range a.List(t.Context(), w.team(), volume.ListOptions{}) {
		is(t, err, k8sadapter.ErrClosed)
	}
	_, err = a.Resolve(t.Context(), w.team(), ask("data"))
	is(t, err, k8sadapter.ErrClosed)
	is(t, a.Start(t.Context()), k8sadapter.ErrClosed)
	must(t, a.Release(t.Context(), r.Token))
	never, err := k8sadapter.New(w.config())
	must(t, err)
	never.Close()
	is(t, never.Start(t.Context()), k8sadapter.ErrClosed)
}

// An error of the API server is unavailable in words that are about it.
func TestAnUnavailableServerIsCalledThat(t *testing.T) {
	a, err := k8sadapter.New(k8sadapter.Config{PersistentVolumes: &many{n: 1}, Leases: noLeases{}, Usage: usage{}})
	must(t, err)
	defer a.Close()
	must(t, a.Start(t.Context()))
	_, err = a.Get(t.Context(), "team", "data")
	is(t, err, volume.ErrUnavailable)
	is(t, err, errInjected)
	if want := "cannot look up a volume: injected"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}

// Ten thousand volumes of a thousand namespaces: a list touches its own ten.
func TestListsOfTenThousandPVsAreIndexed(t *testing.T) {
	pvs := &many{n: 10_000}
	a, err := k8sadapter.New(k8sadapter.Config{PersistentVolumes: pvs, Leases: noLeases{}, Usage: k8sadapter.OpenKruise{}})
	must(t, err)
	defer a.Close()
	must(t, a.Start(t.Context()))
	best := time.Hour
	for range 5 {
		began, n := time.Now(), 0
		for _, err := range a.List(t.Context(), "team-7", volume.ListOptions{}) {
			must(t, err)
			n++
		}
		if n != 10 {
			t.Fatalf("%d volumes, want 10", n)
		}
		best = min(best, time.Since(began))
	}
	t.Logf("best of 5: %s", best)
	if pvs.lists.Load() > 1 {
		t.Errorf("%d lists of the server, want the one of the start", pvs.lists.Load())
	}
}

// BenchmarkListOfTenThousand lists the ten volumes of one of a thousand namespaces, and all ten thousand of one.
func BenchmarkListOfTenThousand(b *testing.B) {
	for _, each := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("owned=%d", each), func(b *testing.B) {
			a, err := k8sadapter.New(k8sadapter.Config{PersistentVolumes: &many{n: 10_000, each: each}, Leases: noLeases{},
				Usage: usage{}})
			must(b, err)
			defer a.Close()
			must(b, a.Start(b.Context()))
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				for _, err := range a.List(b.Context(), "team-0", volume.ListOptions{}) {
					must(b, err)
					n++
				}
				if n != each {
					b.Fatalf("%d volumes, want %d", n, each)
				}
			}
		})
	}
}
