package volume

import "time"

// EventKind says what has happened.
type EventKind string

// The events. Each is something that a person may want to hear of, and none of them needs an answer.
const (
	// EventTakenOver: a volume was taken over for a sandbox on this node; Epoch is the new one.
	EventTakenOver EventKind = "taken-over"
	// EventFenced: a volume of this node was taken over by somebody; Epoch is the one that has ended.
	EventFenced EventKind = "fenced"
	// EventSalvaged: what a fenced sandbox had not published is kept in volume Other.
	EventSalvaged EventKind = "salvaged"
	// EventSalvageFailed: it could not be kept now, and is tried again.
	EventSalvageFailed EventKind = "salvage-failed"
	// EventPublishLate: writes are unpublished for longer than the publish policy allows, and Err says why.
	EventPublishLate EventKind = "publish-late"
	// EventCompacted: the stack of a volume was shortened.
	EventCompacted EventKind = "compacted"
	// EventCollected: a collector run, Other, has ended; Bytes is what it freed.
	EventCollected EventKind = "collected"
	// EventUnpinned: an operator removed a read-only mount's pins.
	EventUnpinned EventKind = "unpinned"
	// EventCacheFull: the node's disk budget is used up.
	EventCacheFull EventKind = "cache-full"
)

// Event is one thing that has happened on this node. Fields that do not apply are zero.
type Event struct {
	Kind    EventKind
	At      time.Time
	Tenant  string
	Volume  string
	Sandbox string
	Epoch   uint64
	Other   string // another volume, or a run
	Reason  string // that a person gave
	Bytes   int64
	Err     error
}

// Observer is told of events. Event is called in the course of the operation, possibly under its locks: it must return at
// once and call nothing of this package.
type Observer interface{ Event(Event) }

// WithObserver has events reported.
func WithObserver(o Observer) Option { return func(s *settings) { s.observer = o } }

func (r *Repository) emit(e Event) {
	if r.observer == nil {
		return
	}
	e.At = r.now()
	r.observer.Event(e)
}
