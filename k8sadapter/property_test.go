package k8sadapter_test

import (
	"errors"
	"fmt"
	"slices"
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
	strict bool
	pvs    []*modelPV
	uses   []modelUse
}

type modelPV struct {
	base, owner, name string
	handle            int
	modes             []corev1.PersistentVolumeAccessMode
	phase             corev1.PersistentVolumePhase
	boundTo           string // a namespace, or empty
	readOnly, block   bool   // by its driver; a device
}

// modelMount is what a request asks for.
type modelMount struct {
	readOnly *bool
	replicas int
	subPath  string
	path     string
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
		if pv.name != name {
			return volume.ErrConflict
		}
		return nil
	case "":
	default:
		return volume.ErrNotFound
	}
	switch {
	case pv.block:
		return volume.ErrInvalid
	case pv.phase == corev1.VolumeReleased, pv.phase == corev1.VolumeFailed, pv.phase == corev1.VolumeBound && pv.boundTo != ns:
		return volume.ErrNotReady
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
func (m *model) mount(i int, ns string, ask modelMount) (readOnly bool, err error) {
	pv := m.pvs[i]
	if pv.owner != ns {
		return false, volume.ErrNotFound
	}
	readOnly, writers, err := m.access(pv, ask.readOnly)
	switch {
	case err != nil:
		return false, err
	case pv.block, ask.subPath == "../up", ask.path != "/data":
		return false, volume.ErrInvalid
	case pv.phase == corev1.VolumePending, pv.phase == corev1.VolumeReleased, pv.phase == corev1.VolumeFailed,
		pv.phase == corev1.VolumeBound && pv.boundTo != ns:
		return false, volume.ErrNotReady
	case writers != "any" && ask.replicas > 1:
		return false, volume.ErrInvalid
	}
	for _, u := range m.uses {
		if m.pvs[u.pv].handle == pv.handle && (writers == "nobody beside" || writers == "one" && !u.readOnly) {
			return false, volume.ErrConflict
		}
	}
	return readOnly, nil
}

// access is the table of access modes and requests.
func (m *model) access(pv *modelPV, ask *bool) (readOnly bool, writers string, err error) {
	has := func(mode corev1.PersistentVolumeAccessMode) bool { return slices.Contains(pv.modes, mode) }
	readOnly = ask != nil && *ask
	switch {
	case pv.readOnly, len(pv.modes) == 1 && has(corev1.ReadOnlyMany):
		if ask != nil && !*ask {
			return false, "", volume.ErrInvalid
		}
		return true, "any", nil
	case has(corev1.ReadWriteOncePod):
		return readOnly, "nobody beside", nil
	case readOnly, has(corev1.ReadWriteMany) && !m.strict:
		return readOnly, "any", nil
	}
	return false, "one", nil
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

// random PersistentVolumes, claims, sandboxes and requests give what the rules say, on the real server, whether
// ReadWriteMany has one writer or many.
func TestPropertyRules(t *testing.T) {
	w := newWorld(t)
	adapters := map[bool]*k8sadapter.Adapter{}
	for _, strict := range []bool{false, true} {
		adapters[strict] = w.adapter(func(c *k8sadapter.Config) { c.Strict = strict })
	}
	rapid.Check(t, func(rt *rapid.T) {
		propertyRuns++
		r := &run{world: w, T: rt, model: model{strict: rapid.Bool().Draw(rt, "strict")}}
		r.a = adapters[r.model.strict]
		r.setup()
		defer r.clear()
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			r.step()
		}
	})
}

func (r *run) setup() {
	const rwo, rwx, rox, pod = corev1.ReadWriteOnce, corev1.ReadWriteMany, corev1.ReadOnlyMany, corev1.ReadWriteOncePod
	modes := rapid.SampledFrom([][]corev1.PersistentVolumeAccessMode{{rwo}, {rwx}, {rox}, {pod}, {rwx, rox}, {rwo, rox}})
	phases := rapid.SampledFrom([]corev1.PersistentVolumePhase{corev1.VolumeAvailable, corev1.VolumeAvailable,
		corev1.VolumeAvailable, corev1.VolumePending, corev1.VolumeBound, corev1.VolumeReleased, corev1.VolumeFailed})
	rarely := func(what string) bool { return rapid.IntRange(0, 7).Draw(r.T, what) == 7 }
	for i := range 3 {
		// The first two are the same storage.
		pv := &modelPV{base: r.name(fmt.Sprintf("p%dn%d", propertyRuns, i)), handle: max(i, 1), modes: modes.Draw(r.T, "modes"),
			phase: phases.Draw(r.T, "phase"), readOnly: rarely("driver reads only"), block: rarely("block")}
		spec := r.spec("x", pv.modes...)
		if pv.phase == corev1.VolumeBound {
			pv.boundTo = rapid.SampledFrom([]string{r.team(), r.other()}).Draw(r.T, "bound to")
			spec.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: pv.boundTo, Name: "c"}
		}
		if pv.block {
			block := corev1.PersistentVolumeBlock
			spec.Spec.VolumeMode = &block
		}
		r.model.pvs = append(r.model.pvs, pv)
		spec.Name, spec.Spec.CSI.VolumeHandle = pv.base, fmt.Sprintf("%s-%d-%d", r.id, propertyRuns, pv.handle)
		spec.Spec.CSI.ReadOnly, spec.Status.Phase = pv.readOnly, pv.phase
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
		r.mountOne(i, ns, modelMount{
			readOnly: rapid.SampledFrom([]*bool{nil, flag(true), flag(false)}).Draw(r.T, "readOnly"),
			replicas: rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(r.T, "replicas"),
			subPath:  rapid.SampledFrom([]string{"", "", "sub/dir", "../up"}).Draw(r.T, "subPath"),
			path:     rapid.SampledFrom([]string{"/data", "/data", "/data", "/etc/x", "data"}).Draw(r.T, "path"),
		})
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

func (r *run) mountOne(i int, ns string, wanted modelMount) {
	request := ask(r.model.pvs[i].base)
	m := &request.Mounts[0]
	m.Refs[0].ID = true
	m.ReadOnly, m.SubPath, m.Path, request.Replicas = wanted.readOnly, wanted.subPath, wanted.path, wanted.replicas
	res, err := r.a.Resolve(r.world.Context(), ns, request)
	ro, want := r.model.mount(i, ns, wanted)
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
