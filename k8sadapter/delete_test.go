package k8sadapter_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandvol/sandvol/k8sadapter"
	"github.com/sandvol/sandvol/volume"
)

// delete unregisters, or deletes the PersistentVolume, as the host has chosen; the second time it is not found.
func TestDeleteDoesWhatTheHostChose(t *testing.T) {
	for mode, gone := range map[k8sadapter.DeleteMode]bool{k8sadapter.Unregister: false, k8sadapter.DeletePV: true} {
		w := newWorld(t)
		a := w.adapter(func(c *k8sadapter.Config) { c.Delete = mode })
		v := w.volume(a, "data")
		must(t, a.Delete(t.Context(), w.team(), "data"))
		is(t, a.Delete(t.Context(), w.team(), "data"), volume.ErrNotFound)
		is(t, a.Delete(t.Context(), w.team(), v.ID), volume.ErrNotFound)
		pv, err := w.pvs.Get(t.Context(), v.ID, metav1.GetOptions{})
		if apierrors.IsNotFound(err) != gone {
			t.Fatalf("PersistentVolume: %v, want it gone: %t", err, gone)
		}
		leases, err := w.leases.List(t.Context(), metav1.ListOptions{})
		must(t, err)
		if len(leases.Items) != 0 {
			t.Errorf("%d leases stay behind", len(leases.Items))
		}
		if gone {
			continue
		}
		if len(pv.Labels) != 0 || len(pv.Annotations) != 0 {
			t.Errorf("labels %v, annotations %v", pv.Labels, pv.Annotations)
		}
		_, err = a.Register(t.Context(), w.other(), k8sadapter.Registration{PV: v.ID, Name: "data"})
		must(t, err)
	}
}

// use is derived from what uses the volume, wherever that is said, and ends with it. Nothing about it is on
// the PersistentVolume.
func TestUseIsDerivedFromClaimsAndSandboxes(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	v := w.volume(a, "data", corev1.ReadWriteMany)
	config := fmt.Sprintf(`[{"pvName":%q,"mountPath":"/data"}]`, v.ID)
	held := func(who ...k8sadapter.Holder) {
		t.Helper()
		err := a.Delete(t.Context(), w.team(), "data")
		is(t, err, volume.ErrInUse)
		want := &k8sadapter.InUseError{Volume: v.ID, Users: who, Unnamed: max(0, 1-len(who))}
		var got *k8sadapter.InUseError
		if !errors.As(err, &got) || cmp.Diff(want, got) != "" {
			t.Errorf("error %v, want %v", err, want)
		}
		pv, err := w.pvs.Get(t.Context(), v.ID, metav1.GetOptions{})
		must(t, err)
		if len(pv.Annotations) != 0 {
			t.Errorf("annotations %v", pv.Annotations)
		}
	}
	free := func() {
		t.Helper()
		uses, err := a.InUse(t.Context(), w.team(), "data")
		must(t, err)
		if len(uses) != 0 {
			t.Errorf("uses %+v", uses)
		}
	}
	drop := func(kind interface {
		Delete(context.Context, string, metav1.DeleteOptions, ...string) error
	}, name string) {
		t.Helper()
		must(t, kind.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	// A claim that has not completed.
	c := w.claimOf(w.team(), "claim", v.ID)
	held(k8sadapter.Holder{Kind: k8sadapter.Claim, Namespace: w.team(), Name: "claim"})
	// One that has completed, with a sandbox; its label with the claim's name says nothing.
	s := w.sandbox(w.team(), "of-claim", map[string]string{"agents.kruise.io/owner": string(c.GetUID())})
	w.complete(c)
	held(k8sadapter.Holder{Kind: k8sadapter.Sandbox, Namespace: w.team(), Name: "of-claim"})
	drop(w.sandboxes(w.team()), s.GetName())
	free() // completed, and its sandboxes are gone: the claim itself is not use
	// A sandbox whose claim is gone, or that never had one.
	drop(w.claims(w.team()), "claim")
	w.sandbox(w.team(), "orphan", map[string]string{k8sadapter.VolumeConfig: config})
	held(k8sadapter.Holder{Kind: k8sadapter.Sandbox, Namespace: w.team(), Name: "orphan"})
	drop(w.sandboxes(w.team()), "orphan")
	free()
	// A claim that names it in the annotations for its sandboxes.
	sly := object("SandboxClaim", w.team(), "sly", map[string]any{"templateName": "x",
		"annotations": map[string]any{k8sadapter.VolumeConfig: config}})
	_, err := w.claims(w.team()).Create(t.Context(), sly, metav1.CreateOptions{})
	must(t, err)
	held(k8sadapter.Holder{Kind: k8sadapter.Claim, Namespace: w.team(), Name: "sly"})
	drop(w.claims(w.team()), "sly")
	// Another namespace's: it counts, and is not named.
	w.claimOf(w.other(), "foreign", v.ID)
	held()
	err = a.Delete(t.Context(), w.team(), "data")
	if strings.Contains(err.Error(), "foreign") || strings.Contains(err.Error(), w.other()) {
		t.Errorf("error %v names another tenant's", err)
	}
	uses, err := a.InUse(t.Context(), w.team(), "data")
	must(t, err)
	if len(uses) != 1 || uses[0].Holder.Name != "" || uses[0].Holder.Namespace != "" {
		t.Errorf("uses %+v", uses)
	}
	drop(w.claims(w.other()), "foreign")
	free()
	must(t, a.Delete(t.Context(), w.team(), "data"))
}

// Who uses a volume is called what it is, and nobody is made up.
func TestInUseErrorsSayWhatUsesTheVolume(t *testing.T) {
	for want, e := range map[string]*k8sadapter.InUseError{
		`volume "pv" is in use by claim c, sandbox s`: {Volume: "pv", Users: []k8sadapter.Holder{
			{Kind: k8sadapter.Claim, Namespace: "ns", Name: "c"}, {Kind: k8sadapter.Sandbox, Namespace: "ns", Name: "s"}}},
		`volume "pv" is in use by a mount that is not confirmed yet or is outside its namespace`: {Volume: "pv", Unnamed: 1},
		`volume "pv" is in use by checkpoint k, 2 mounts that are not confirmed yet or are outside its namespace`: {Volume: "pv",
			Users: []k8sadapter.Holder{{Kind: k8sadapter.Checkpoint, Namespace: "ns", Name: "k"}}, Unnamed: 2},
	} {
		if e.Error() != want || !errors.Is(e, volume.ErrInUse) {
			t.Errorf("%q, want %q", e.Error(), want)
		}
	}
}

// What cannot be read counts as in use, for the volumes that it can be about.
func TestUnreadableMountsAreUse(t *testing.T) {
	w := newWorld(t)
	var seen []k8sadapter.Observation
	a := w.adapter(nil, k8sadapter.WithObserver(func(o k8sadapter.Observation) { seen = append(seen, o) }))
	v := w.volume(a, "data")
	w.sandbox(w.team(), "broken", map[string]string{k8sadapter.VolumeConfig: `[{"pvName":`})
	is(t, a.Delete(t.Context(), w.team(), "data"), volume.ErrInUse)
	must(t, w.sandboxes(w.team()).Delete(t.Context(), "broken", metav1.DeleteOptions{}))
	w.sandbox(w.other(), "naming", map[string]string{k8sadapter.VolumeConfig: v.ID + `[`})
	is(t, a.Delete(t.Context(), w.team(), "data"), volume.ErrInUse)
	must(t, w.sandboxes(w.other()).Delete(t.Context(), "naming", metav1.DeleteOptions{}))
	unreadable := 0
	for _, o := range seen {
		if o.Result == k8sadapter.ResultUnreadable {
			unreadable++
		}
	}
	if unreadable == 0 {
		t.Error("it was not counted")
	}
	defer func() {
		must(t, w.sandboxes(w.other()).Delete(t.Context(), "unrelated", metav1.DeleteOptions{}))
	}()
	// Another tenant's own broken objects do not keep anybody's volumes.
	w.sandbox(w.other(), "unrelated", map[string]string{k8sadapter.VolumeConfig: `[{"pvName":`})
	must(t, a.Delete(t.Context(), w.team(), "data"))
}

func TestADeletionThatCannotLookIsRefused(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(func(c *k8sadapter.Config) { c.Usage = usage{err: errInjected} })
	v := w.volume(a, "data")
	is(t, a.Delete(t.Context(), w.team(), "data"), volume.ErrUnavailable)
	pv, err := w.pvs.Get(t.Context(), v.ID, metav1.GetOptions{})
	must(t, err)
	if len(pv.Annotations) != 0 || pv.Labels[k8sadapter.NameLabel] != "data" {
		t.Errorf("labels %v, annotations %v: the flag stays behind", pv.Labels, pv.Annotations)
	}
}

// D-10: a checkpoint keeps its volumes if the host says so.
func TestCheckpointsCanCount(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(func(c *k8sadapter.Config) {
		k := c.Usage.(k8sadapter.OpenKruise)
		k.Checkpoints = w.dynamic.Resource(k8sadapter.Checkpoints)
		c.Usage = k
	})
	v := w.volume(a, "data")
	k := object("Checkpoint", w.team(), "cp", map[string]any{})
	k.SetAnnotations(map[string]string{k8sadapter.VolumeConfig: fmt.Sprintf(`[{"pvName":%q,"mountPath":"/d"}]`, v.ID)})
	_, err := w.dynamic.Resource(k8sadapter.Checkpoints).Namespace(w.team()).Create(t.Context(), k, metav1.CreateOptions{})
	must(t, err)
	is(t, a.Delete(t.Context(), w.team(), "data"), volume.ErrInUse)
	r, err := a.Resolve(t.Context(), w.team(), ask("data")) // it writes nothing
	must(t, err)
	must(t, a.Release(t.Context(), r.Token))
	must(t, w.adapter(nil).Delete(t.Context(), w.team(), "data"))
}

// A volume that is deleted between Resolve and Confirm is not mounted, whether it was shared, which no lease keeps.
func TestADeletionBetweenResolveAndConfirmIsSeen(t *testing.T) {
	for _, mode := range []k8sadapter.DeleteMode{k8sadapter.Unregister, k8sadapter.DeletePV} {
		w := newWorld(t)
		a := w.adapter(func(c *k8sadapter.Config) { c.Delete = mode })
		w.volume(a, "data", corev1.ReadWriteMany)
		r, err := a.Resolve(t.Context(), w.team(), ask("data"))
		must(t, err)
		must(t, a.Delete(t.Context(), w.team(), "data"))
		is(t, a.Confirm(t.Context(), r.Token), volume.ErrNotFound)
	}
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "once")
	r, err := a.Resolve(t.Context(), w.team(), ask("once"))
	must(t, err)
	is(t, a.Delete(t.Context(), w.team(), "once"), volume.ErrInUse)
	must(t, a.Confirm(t.Context(), r.Token))
}

// A mount that is stored after the deletion has looked, and confirmed before its last step: the mount wins.
func TestAMountThatSeesTheFlagStopsTheDeletion(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "data", corev1.ReadWriteMany)
	r, err := a.Resolve(t.Context(), w.team(), ask("data"))
	must(t, err)
	var once sync.Once
	confirmed := make(chan error, 1)
	deleter := w.adapter(func(c *k8sadapter.Config) {
		c.Usage = after{c.Usage, func() {
			once.Do(func() {
				_, err := w.claim(w.team(), "c", r)
				confirmed <- errors.Join(err, a.Confirm(t.Context(), r.Token))
			})
		}}
	})
	is(t, deleter.Delete(t.Context(), w.team(), "data"), volume.ErrInUse)
	must(t, <-confirmed)
	_, err = a.Get(t.Context(), w.team(), "data")
	must(t, err)
}

// Somebody who died while deleting keeps nobody from mounting, or from deleting.
func TestAFlagThatWasLeftBehindAges(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	v := w.volume(a, "data", corev1.ReadWriteMany)
	flag := func(at time.Time) {
		pv, err := w.pvs.Get(t.Context(), v.ID, metav1.GetOptions{})
		must(t, err)
		pv.Annotations = map[string]string{"agents.kruise.io/volume-deleting": "dead " + at.UTC().Format(time.RFC3339)}
		_, err = w.pvs.Update(t.Context(), pv, metav1.UpdateOptions{})
		must(t, err)
	}
	flag(time.Now())
	_, err := a.Resolve(t.Context(), w.team(), ask("data"))
	reason(t, err, k8sadapter.Deleting)
	flag(time.Now().Add(-time.Hour))
	_, err = a.Resolve(t.Context(), w.team(), ask("data"))
	must(t, err)
	flag(time.Now())
	must(t, a.Delete(t.Context(), w.team(), "data"))
}

// Delete against mount, 400 rounds on the real server, by two managers: never both, and never neither. A-143: a mount that
// loses leaves no claim.
func TestDeleteAgainstMountNeverBoth(t *testing.T) {
	w := newWorld(t)
	deleter := w.adapter(func(c *k8sadapter.Config) { c.Delete = k8sadapter.DeletePV })
	mounter := w.adapter(func(c *k8sadapter.Config) { c.PersistentVolumes = deaf{w.pvs} })
	const rounds, lanes = 400, 8
	var mu sync.Mutex
	counts := map[string]int{}
	var wg sync.WaitGroup
	for lane := range lanes {
		wg.Go(func() {
			for i := lane; i < rounds; i += lanes {
				result := w.duel(deleter, mounter, i)
				mu.Lock()
				counts[result]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%v", counts)
	if counts["deleted"]+counts["mounted"]+counts["neither"] != rounds {
		t.Errorf("rounds ended as %v", counts)
	}
	if counts["deleted"] == 0 || counts["mounted"] == 0 {
		t.Errorf("rounds ended as %v: both sides should win some", counts)
	}
	if counts["neither"] > rounds/20 {
		t.Errorf("%d rounds of %d had no winner", counts["neither"], rounds)
	}
}

// duel is one round; it returns what became of the volume.
func (w *world) duel(deleter, mounter *k8sadapter.Adapter, i int) string {
	ctx := w.Context()
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadWriteOnce}
	base := fmt.Sprintf("d%d", i)
	pv := w.spec(base, modes[i%2])
	pv, err := w.pvs.Create(ctx, pv, metav1.CreateOptions{})
	if err == nil {
		pv.Status.Phase = corev1.VolumeAvailable
		_, err = w.pvs.UpdateStatus(ctx, pv, metav1.UpdateOptions{})
	}
	if err == nil {
		_, err = mounter.Register(ctx, w.team(), k8sadapter.Registration{PV: pv.Name})
	}
	if err != nil {
		return "setup: " + err.Error()
	}
	start := make(chan struct{})
	var deleted, mounted error
	var both sync.WaitGroup
	both.Go(func() {
		<-start
		time.Sleep(time.Duration(i%7) * time.Millisecond) // meet at every step
		deleted = deleter.Delete(ctx, w.team(), pv.Name)
	})
	both.Go(func() { <-start; mounted = w.mount(mounter, pv.Name, base) })
	close(start)
	both.Wait()
	_, err = w.pvs.Get(ctx, pv.Name, metav1.GetOptions{})
	gone := apierrors.IsNotFound(err)
	// Either may be gone. What stays would be listed by every round to come.
	_ = w.pvs.Delete(ctx, pv.Name, metav1.DeleteOptions{})
	_ = w.claims(w.team()).Delete(ctx, base, metav1.DeleteOptions{})
	switch {
	case gone && mounted == nil:
		return "mounted and deleted"
	case gone != (deleted == nil):
		return fmt.Sprintf("gone %t, delete said %v", gone, deleted)
	case gone:
		return "deleted"
	case mounted == nil:
		return "mounted"
	}
	return "neither"
}

// mount is what a host does.
func (w *world) mount(a *k8sadapter.Adapter, ref, claim string) error {
	r, err := a.Resolve(w.Context(), w.team(), ask(ref))
	if err != nil {
		return err
	}
	if _, err = w.claim(w.team(), claim, r); err == nil {
		err = a.Confirm(w.Context(), r.Token)
	}
	if err != nil {
		gone := w.claims(w.team()).Delete(w.Context(), claim, metav1.DeleteOptions{})
		return errors.Join(err, gone, a.Release(w.Context(), r.Token))
	}
	return nil
}

// Many who delete the same volume: one does, the others find nothing.
func TestDeletionsOfOneVolumeDoNotDisturbEachOther(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "data")
	errs := make(chan error)
	for range 6 {
		go func() { errs <- a.Delete(t.Context(), w.team(), "data") }()
	}
	won := 0
	for range 6 {
		if err := <-errs; err == nil {
			won++
		} else {
			is(t, err, volume.ErrNotFound)
		}
	}
	if won != 1 {
		t.Errorf("%d deletions succeeded", won)
	}
}

// An update whose answer is lost is found, not repeated.
func TestALostAnswerIsFound(t *testing.T) {
	w := newWorld(t)
	lost := 0
	a := w.adapter(func(c *k8sadapter.Config) {
		c.PersistentVolumes = forgetful{failing{w.pvs, func(*corev1.PersistentVolume) error { lost++; return nil }}, &lost}
	})
	pv := w.available("pv")
	_, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name, Name: "data"})
	is(t, err, volume.ErrUnavailable)
	v, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name, Name: "data"})
	must(t, err)
	if v.Name != "data" {
		t.Errorf("volume %+v", v)
	}
	second := w.available("second")
	_, err = a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: second.Name, Name: "data"})
	is(t, err, volume.ErrExists)
}
