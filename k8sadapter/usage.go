package k8sadapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The resources of OpenKruise, for a dynamic client.
var (
	SandboxClaims = schema.GroupVersionResource{Group: "agents.kruise.io", Version: "v1alpha1", Resource: "sandboxclaims"}
	Sandboxes     = schema.GroupVersionResource{Group: "agents.kruise.io", Version: "v1alpha1", Resource: "sandboxes"}
	Checkpoints   = schema.GroupVersionResource{Group: "agents.kruise.io", Version: "v1alpha1", Resource: "checkpoints"}
)

// Kind is what kind of object uses a volume.
type Kind string

// The kinds of users. Resolving is a mount that was resolved and is not confirmed yet.
const (
	Claim      Kind = "claim"
	Sandbox    Kind = "sandbox"
	Checkpoint Kind = "checkpoint"
	Resolving  Kind = "resolution"
)

// Holder names an object that uses volumes, or is to use them.
type Holder struct {
	Kind      Kind   `json:"kind,omitzero"`
	Namespace string `json:"namespace,omitzero"`
	Name      string `json:"name,omitzero"`
}

func (h Holder) String() string { return fmt.Sprintf("%s %s/%s", h.Kind, h.Namespace, h.Name) }

// Use is one object's use of one PersistentVolume.
type Use struct {
	Holder Holder
	// Via is the claim that took the sandbox which is the Holder; zero if there is none any more.
	Via Holder
	PV  string
	// ReadOnly says that the use does not write.
	ReadOnly bool
	// Unreadable is set if what the object uses cannot be read. It then counts as using every volume of its namespace, and
	// each one whose id occurs in what was not understood, which is Raw. PV is empty.
	Unreadable bool
	Raw        string
}

// of reports whether the use is, or may be, of a volume with this id and owner.
func (u Use) of(pv, owner string) bool {
	if !u.Unreadable {
		return u.PV == pv
	}
	// Not every volume of the cluster: what a tenant can write into its own objects must not stop other tenants. A pipeline
	// that mounted from it would have to read it first.
	return u.Holder.Namespace == owner || strings.Contains(u.Raw, pv)
}

// by reports whether a use is the holder's own.
func (u Use) by(h Holder) bool { return h != Holder{} && (u.Holder == h || u.Via == h) }

// Usage finds who uses PersistentVolumes. It must see every use that was stored before it was called: it is asked when a
// volume is to be deleted, or to be written by one alone. Whatever it cannot read is an error, never no use.
type Usage interface {
	Uses(ctx context.Context) ([]Use, error)
}

// Objects lists the objects of a resource in all namespaces. A dynamic client's Resource(...) has it.
type Objects interface {
	List(ctx context.Context, o metav1.ListOptions) (*unstructured.UnstructuredList, error)
}

// OpenKruise finds the users of PersistentVolumes among the objects of OpenKruise: nothing about them is stored anywhere
// else, so nothing goes stale. Claims and Sandboxes are needed. With Checkpoints, a checkpoint counts as a user too.
//
// A claim uses what its spec mounts until it has completed. From then on its sandboxes do, which outlive it, and so do
// sandboxes that no claim made: what a sandbox mounts is in its annotation VolumeConfig.
type OpenKruise struct {
	Claims      Objects
	Sandboxes   Objects
	Checkpoints Objects
}

// Uses lists all users. It reads claims before sandboxes: a claim completes after its sandboxes are written, so one that is
// seen completed has all of its sandboxes seen.
func (k OpenKruise) Uses(ctx context.Context) ([]Use, error) {
	claims, err := listAll(ctx, k.Claims)
	if err != nil {
		return nil, fmt.Errorf("list sandbox claims: %w", err)
	}
	sandboxes, err := listAll(ctx, k.Sandboxes)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	var uses []Use
	byUID := map[string]unstructured.Unstructured{}
	for _, c := range claims {
		byUID[string(c.GetUID())] = c
		if phase, _, _ := unstructured.NestedString(c.Object, "status", "phase"); phase != "Completed" {
			uses = append(uses, claimUses(holder(Claim, c), Holder{}, c)...)
		}
	}
	for _, s := range sandboxes {
		h := holder(Sandbox, s)
		var via Holder
		if c, ok := byUID[s.GetAnnotations()[ownerAnnotation]]; ok {
			via = holder(Claim, c)
			uses = append(uses, claimUses(h, via, c)...)
		}
		uses = append(uses, configUses(h, via, s.GetAnnotations()[VolumeConfig])...)
	}
	return k.checkpoints(ctx, uses)
}

func (k OpenKruise) checkpoints(ctx context.Context, uses []Use) ([]Use, error) {
	if k.Checkpoints == nil {
		return uses, nil
	}
	checkpoints, err := listAll(ctx, k.Checkpoints)
	if err != nil {
		return nil, fmt.Errorf("list checkpoints: %w", err)
	}
	for _, c := range checkpoints {
		for _, u := range configUses(holder(Checkpoint, c), Holder{}, c.GetAnnotations()[VolumeConfig]) {
			u.ReadOnly = true // it writes nothing, and keeps the volume from being deleted
			uses = append(uses, u)
		}
	}
	return uses, nil
}

func holder(k Kind, o unstructured.Unstructured) Holder {
	return Holder{Kind: k, Namespace: o.GetNamespace(), Name: o.GetName()}
}

// claimUses is what a claim's spec mounts: in its own field, and in the annotation that it gives to its sandboxes.
func claimUses(h, via Holder, claim unstructured.Unstructured) []Use {
	annotation, _, err := unstructured.NestedString(claim.Object, "spec", "annotations", VolumeConfig)
	if err != nil {
		return []Use{{Holder: h, Via: via, Unreadable: true, Raw: fmt.Sprint(claim.Object["spec"])}}
	}
	uses := configUses(h, via, annotation)
	mounts, found, err := unstructured.NestedFieldNoCopy(claim.Object, "spec", "dynamicVolumesMount")
	if !found || err == nil && mounts == nil {
		return uses
	}
	text, failed := json.Marshal(mounts)
	if errors.Join(err, failed) != nil {
		return append(uses, Use{Holder: h, Via: via, Unreadable: true, Raw: fmt.Sprint(mounts)})
	}
	return append(uses, configUses(h, via, string(text))...)
}

// configUses reads mounts as the pipeline that mounts them does, which is more lenient than what this package accepts:
// members of any case, and others beside them.
func configUses(h, via Holder, text string) []Use {
	if text == "" {
		return nil
	}
	var mounts []struct {
		PV       string `json:"pvName"`
		ReadOnly bool   `json:"readOnly"`
	}
	if err := json.Unmarshal([]byte(text), &mounts); err != nil {
		return []Use{{Holder: h, Via: via, Unreadable: true, Raw: text}}
	}
	uses := make([]Use, 0, len(mounts))
	for _, m := range mounts {
		uses = append(uses, Use{Holder: h, Via: via, PV: m.PV, ReadOnly: m.ReadOnly})
	}
	return uses
}

// page is how many objects one request lists.
const page = 500

// listAll lists in pages, all of one snapshot. No resource version is asked for, so the snapshot has every write that was
// acknowledged before; "0" would be whatever a cache has.
func listAll(ctx context.Context, objects Objects) ([]unstructured.Unstructured, error) {
	for attempt := 0; ; attempt++ {
		items, err := listPages(ctx, objects)
		// A snapshot is dropped after some minutes. Then a new one is listed from its start.
		if attempt == 0 && apierrors.IsResourceExpired(err) {
			continue
		}
		return items, err
	}
}

func listPages(ctx context.Context, objects Objects) (items []unstructured.Unstructured, err error) {
	o := metav1.ListOptions{Limit: page}
	for {
		list, err := objects.List(ctx, o)
		if err != nil {
			return nil, err
		}
		items = append(items, list.Items...)
		if o.Continue = list.GetContinue(); o.Continue == "" {
			return items, nil
		}
	}
}
