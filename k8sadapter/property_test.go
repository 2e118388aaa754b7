package k8sadapter_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/sandvol/sandvol/k8sadapter"
	"github.com/sandvol/sandvol/volume"
)

// model is the rules, in memory.
type model struct {
	pvs  []*modelPV
	uses []modelUse
}

type modelPV struct {
	base, owner, name string
	handle            int
	mode              corev1.PersistentVolumeAccessMode
}

type modelUse struct {
	pv       int
	readOnly bool
	ns, name string
	sandbox  bool // else a claim
}

func (m *model) register(i int, ns, name string) error {
	pv := m.pvs[i]
	switch pv.owner {
	case ns:
		return nil
	case "":
	default:
		return volume.ErrNotFound
	}
	for _, o := range m.pvs {
		if o.owner == ns && (o.name == name || o.base == name || o.name == pv.base) {
			return volume.ErrExists
		}
	}
	pv.owner, pv.name = ns, name
	return nil
}

// find returns what an id, or a name that looks like one, means in a namespace.
func (m *model) find(ref, ns string) (int, bool) {
	for i, pv := range m.pvs {
		if pv.owner == ns && (pv.base == ref || pv.name == ref) {
			return i, true
		}
	}
	return 0, false
}

func (m *model) delete(ref, ns string) error {
	i, ok := m.find(ref, ns)
	if !ok {
		return volume.ErrNotFound
	}
	for _, u := range m.uses {
		if u.pv == i {
			return volume.ErrInUse
		}
	}
	m.pvs[i].owner, m.pvs[i].name = "", ""
	return nil
}

// mount says what becomes of a mount, and whether it is read-only.
func (m *model) mount(i int, ns string, ask *bool) (readOnly bool, err error) {
	pv := m.pvs[i]
	if pv.owner != ns {
		return false, volume.ErrNotFound
	}
	readOnly = ask != nil && *ask
	switch pv.mode {
	case corev1.ReadOnlyMany:
		if ask != nil && !*ask {
			return false, volume.ErrInvalid
		}
		return true, nil
	case corev1.ReadWriteMany:
		return readOnly, nil
	case corev1.ReadWriteOnce:
		if readOnly {
			return true, nil
		}
	}
	for _, u := range m.uses {
		if m.pvs[u.pv].handle == pv.handle && (pv.mode == corev1.ReadWriteOncePod || !u.readOnly) {
			return false, volume.ErrConflict
		}
	}
	return readOnly, nil
}

// run is one random history on the real server, beside the model.
type run struct {
	*world
	*rapid.T
	a     *k8sadapter.Adapter
	model model
	n     int
}

var propertyRuns int

// random PersistentVolumes, claims, sandboxes and requests give what the rules say, on the real server.
func TestPropertyRules(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	rapid.Check(t, func(rt *rapid.T) {
		propertyRuns++
		r := &run{world: w, T: rt, a: a}
		r.setup()
		defer r.clear()
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			r.step()
		}
	})
}

func (r *run) setup() {
	modes := rapid.SampledFrom([]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany,
		corev1.ReadOnlyMany, corev1.ReadWriteOncePod})
	for i := range 3 {
		// The first two are the same storage.
		pv := &modelPV{base: r.name(fmt.Sprintf("p%dn%d", propertyRuns, i)), handle: max(i, 1), mode: modes.Draw(r.T, "mode")}
		r.model.pvs = append(r.model.pvs, pv)
		spec := r.spec("x", pv.mode)
		spec.Name, spec.Spec.CSI.VolumeHandle = pv.base, fmt.Sprintf("%s-%d-%d", r.id, propertyRuns, pv.handle)
		r.create(spec)
	}
}

func (r *run) clear() {
	for len(r.model.uses) > 0 {
		r.end(0)
	}
	for _, pv := range r.model.pvs {
		if pv.owner != "" {
			// A failed run may have left it resolved. What it is called is its own.
			_ = r.a.Delete(r.world.Context(), pv.owner, pv.base)
		}
	}
}

func (r *run) step() {
	i := rapid.IntRange(0, len(r.model.pvs)-1).Draw(r.T, "pv")
	ns := rapid.SampledFrom([]string{r.team(), r.team(), r.other()}).Draw(r.T, "namespace")
	switch rapid.SampledFrom([]string{"register", "register", "mount", "mount", "mount", "delete", "end", "move"}).Draw(r.T, "op") {
	case "register":
		name := rapid.SampledFrom([]string{"n0", "n1", r.model.pvs[0].base}).Draw(r.T, "name")
		_, err := r.a.Register(r.world.Context(), ns, k8sadapter.Registration{PV: r.model.pvs[i].base, Name: name})
		r.same("register", err, r.model.register(i, ns, name))
		if err == nil {
			r.known(i)
		}
	case "mount":
		r.mountOne(i, ns, rapid.SampledFrom([]*bool{nil, flag(true), flag(false)}).Draw(r.T, "readOnly"))
	case "delete":
		r.same("delete", r.a.Delete(r.world.Context(), ns, r.model.pvs[i].base), r.model.delete(r.model.pvs[i].base, ns))
	case "end":
		if n := len(r.model.uses); n > 0 {
			r.end(rapid.IntRange(0, n-1).Draw(r.T, "use"))
		}
	case "move":
		if n := len(r.model.uses); n > 0 {
			r.move(rapid.IntRange(0, n-1).Draw(r.T, "use"))
		}
	}
}

func (r *run) same(op string, got, want error) {
	r.world.Helper()
	if (want == nil) != (got == nil) || want != nil && !errors.Is(got, want) {
		r.T.Fatalf("%s: %v, the model says %v", op, got, want)
	}
}

// known waits until the watch has a volume: what shares its storage is known from there.
func (r *run) known(i int) {
	for range 2000 {
		for v := range r.a.List(r.world.Context(), r.model.pvs[i].owner, volume.ListOptions{}) {
			if v.ID == r.model.pvs[i].base {
				return
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.T.Fatal("never known")
}

func (r *run) mountOne(i int, ns string, readOnly *bool) {
	request := ask(r.model.pvs[i].base)
	request.Mounts[0].Refs[0].ID = true
	request.Mounts[0].ReadOnly = readOnly
	res, err := r.a.Resolve(r.world.Context(), ns, request)
	ro, want := r.model.mount(i, ns, readOnly)
	r.same("resolve", err, want)
	if err != nil {
		return
	}
	if res.Mounts[0].ReadOnly != ro {
		r.T.Fatalf("read-only %t, the model says %t", res.Mounts[0].ReadOnly, ro)
	}
	r.n++
	u := modelUse{pv: i, readOnly: ro, ns: ns, name: fmt.Sprintf("c%d-%d", propertyRuns, r.n)}
	_, err = r.claim(ns, u.name, res)
	must(r.world.T, errors.Join(err, r.a.Confirm(r.world.Context(), res.Token)))
	r.model.uses = append(r.model.uses, u)
}

// end deletes what uses a volume.
func (r *run) end(i int) {
	u := r.model.uses[i]
	objects := r.claims(u.ns)
	if u.sandbox {
		objects = r.sandboxes(u.ns)
	}
	must(r.world.T, objects.Delete(r.world.Context(), u.name, metav1.DeleteOptions{}))
	r.model.uses = append(r.model.uses[:i:i], r.model.uses[i+1:]...)
}

// move completes a claim: its sandbox uses the volume from now on, and the claim goes.
func (r *run) move(i int) {
	u := &r.model.uses[i]
	if u.sandbox {
		return
	}
	r.sandbox(u.ns, u.name, map[string]string{k8sadapter.VolumeConfig: fmt.Sprintf(`[{"pvName":%q,"mountPath":"/data","readOnly":%t}]`,
		r.model.pvs[u.pv].base, u.readOnly)})
	must(r.world.T, r.claims(u.ns).Delete(r.world.Context(), u.name, metav1.DeleteOptions{}))
	u.sandbox = true
}
