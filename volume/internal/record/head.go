package record

import (
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sandvol/sandvol/overlaybd"
)

// Status is where a volume or checkpoint is in its life.
type Status string

// The statuses. Deleted is the tombstone and final.
const (
	StatusUploading Status = "uploading" // its first content is not complete yet
	StatusReady     Status = "ready"
	StatusFailed    Status = "failed"   // its first content could not be made; the name is still taken
	StatusDeleting  Status = "deleting" // an ro volume whose readers are being looked for
	StatusDeleted   Status = "deleted"
)

// Consistency says how the file systems were when a cut was made.
type Consistency string

// Clean: frozen or detached when sealed, so that a read-only mount needs no repair. Crash: as after a power cut.
const (
	Clean Consistency = "clean"
	Crash Consistency = "crash"
)

// Layer is a layer reference as stored in a record.
type Layer struct {
	overlaybd.Layer `json:",embed"`

	Extra jsontext.Value `json:",embed"`
}

// Stack is a disk's content as stored in a record: layers, bottom first, and the size of the disk in bytes.
type Stack struct {
	VirtualSize int64          `json:"virtualSize"`
	Layers      []Layer        `json:"layers"`
	Extra       jsontext.Value `json:",embed"`
}

// Value returns the stack for the engine.
func (s Stack) Value() overlaybd.Stack {
	v := overlaybd.Stack{VirtualSize: s.VirtualSize}
	for _, l := range s.Layers {
		v.Layers = append(v.Layers, l.Layer)
	}
	return v
}

// Clone returns a copy that shares no slice.
func (s Stack) Clone() Stack {
	s.Layers = slices.Clone(s.Layers)
	return s
}

// SameContent reports whether both stacks name the same layers in the same order at the same size.
func (s Stack) SameContent(o Stack) bool {
	return s.VirtualSize == o.VirtualSize &&
		slices.EqualFunc(s.Layers, o.Layers, func(a, b Layer) bool { return a.Layer == b.Layer })
}

// Contains reports whether a layer with the key is in the stack.
func (s Stack) Contains(key string) bool {
	return slices.ContainsFunc(s.Layers, func(l Layer) bool { return l.Key == key })
}

// Origin names what a stack was copied from, so that the copy can be checked again before it counts. Tenant is set only for
// the hidden volumes of the reserved tenant. Checkpoint is set when the copy is of a checkpoint; Volume then is that
// checkpoint's volume, as text. Fenced is set in a salvage: the epoch of the holder whose unpublished writes it keeps.
type Origin struct {
	Tenant     string         `json:"tenant,omitzero"`
	Volume     string         `json:"volume,omitzero"`
	Checkpoint string         `json:"checkpoint,omitzero"`
	Generation uint64         `json:"generation,omitzero"`
	Image      string         `json:"image,omitzero"`
	Fenced     uint64         `json:"fenced,omitzero"`
	Extra      jsontext.Value `json:",embed"`
}

// Content says which cut the stack holds.
type Content struct {
	Cut         string         `json:"cut,omitzero"`
	Consistency Consistency    `json:"consistency,omitzero"`
	PublishedAt time.Time      `json:"publishedAt,omitzero"`
	Extra       jsontext.Value `json:",embed"`
}

// Head is what a volume and a checkpoint have in common.
type Head struct {
	ID        string            `json:"id"`
	Tenant    string            `json:"tenant"`
	Name      string            `json:"name,omitzero"`
	Status    Status            `json:"status"`
	Labels    map[string]string `json:"labels,omitempty"`
	CreatedAt time.Time         `json:"createdAt"`
	DeletedAt time.Time         `json:"deletedAt,omitzero"`
	Origin    Origin            `json:"origin,omitzero"`
	Stack     Stack             `json:"stack"`
	Content   Content           `json:"content,omitzero"`
	// Settled is set on a tombstone whose references the collector has let go.
	Settled bool `json:"settled,omitzero"`
}

// Record is a state that can be made by copying another one.
type Record interface{ Volume | Checkpoint }

// HeadOf returns the common part of a state.
func HeadOf[S Record](s *S) *Head {
	switch p := any(s).(type) {
	case *Volume:
		return &p.Head
	case *Checkpoint:
		return &p.Head
	}
	panic("unreachable: Record has two types")
}

func kindOf[S Record](s *S) string {
	if _, ok := any(s).(*Volume); ok {
		return "volume"
	}
	return "checkpoint"
}

func statusError[S Record](s *S, op string) error {
	h := HeadOf(s)
	return &StatusError{Kind: kindOf(s), ID: h.ID, Status: h.Status, Op: op}
}
