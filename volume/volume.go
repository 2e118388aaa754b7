package volume

import (
	"maps"
	"time"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Mode says who may mount a volume. It is fixed for life.
type Mode = record.Mode

// The modes. There is no shared-write mode: anything else than these is ErrUnsupported.
const (
	// Exclusive is one sandbox, reading and writing. It is the default.
	Exclusive = record.Exclusive
	// ReadOnly is any number of sandboxes, reading content that never changes.
	ReadOnly = record.ReadOnly
)

// Status is where a volume or checkpoint is in its life.
type Status = record.Status

// The statuses that a caller can see. Only a ready volume can be mounted.
const (
	StatusUploading = record.StatusUploading
	StatusReady     = record.StatusReady
	StatusFailed    = record.StatusFailed
	StatusDeleting  = record.StatusDeleting
	// StatusUnreadable marks a record that a newer version wrote, or that is damaged. It is listed and left alone.
	StatusUnreadable Status = "unreadable"
)

// Consistency says how the file systems were when a cut was made.
type Consistency = record.Consistency

// Clean: frozen or detached when sealed. Crash: as after a power cut; a journal replay repairs it.
const (
	Clean = record.Clean
	Crash = record.Crash
)

// Sizes, in bytes. A volume's size is a multiple of MiB from MinSize to MaxSize.
const (
	MiB         int64 = 1 << 20
	GiB         int64 = 1 << 30
	DefaultSize       = 64 * GiB
	MinSize           = 16 * MiB
	MaxSize           = 16 << 10 * GiB
)

// Volume is what one generation of a volume's record says.
type Volume struct {
	// ID is a UUIDv7: volumes sort by the time of their creation.
	ID string
	// Name is unique among the tenant's volumes, or empty.
	Name   string
	Mode   Mode
	Status Status
	// Size is the size of the disk in bytes.
	Size      int64
	Labels    map[string]string
	CreatedAt time.Time
	// Lineage says what the volume was made from. It is text: what it names may be gone.
	Lineage Lineage
	// Reservation says who may write the volume. It is free for an ro volume.
	Reservation reservation.State
	// SuspectSince is when the holder's node was last heard of, if that is longer ago than three heartbeats. It is advice for
	// people and schedulers, filled by Get and List: nothing in this library acts on it.
	SuspectSince time.Time
	// Generation is the number of the record's generation that this value was read from.
	Generation uint64
	// Stack is the published content.
	Stack overlaybd.Stack
	// Cut and Consistency say which freeze the published content is from.
	Cut         string
	Consistency Consistency
	PublishedAt time.Time
}

// Lineage names what a volume or checkpoint was copied from: nothing for an empty volume.
type Lineage struct {
	Volume     string
	Checkpoint string
	Generation uint64
	// Fenced is set in a salvage: the epoch of the holder whose unpublished writes it keeps.
	Fenced uint64
}

// Checkpoint is a kept state of a volume. It outlives the volume.
type Checkpoint struct {
	ID          string
	Name        string
	Volume      string
	Generation  uint64
	Status      Status
	Size        int64
	Labels      map[string]string
	CreatedAt   time.Time
	Stack       overlaybd.Stack
	Cut         string
	Consistency Consistency
}

func volumeOf(g genlog.Generation[record.Volume]) Volume {
	s := g.State
	return Volume{
		ID: s.ID, Name: s.Name, Mode: s.Mode, Status: s.Status, Size: s.Stack.VirtualSize,
		Labels: maps.Clone(s.Labels), CreatedAt: s.CreatedAt, Lineage: lineageOf(s.Origin),
		Reservation: s.Reservation, Generation: g.Number, Stack: s.Stack.Value(),
		Cut: s.Content.Cut, Consistency: s.Content.Consistency, PublishedAt: s.Content.PublishedAt,
	}
}

func checkpointOf(g genlog.Generation[record.Checkpoint]) Checkpoint {
	s := g.State
	return Checkpoint{
		ID: s.ID, Name: s.Name, Volume: s.Origin.Volume, Generation: s.Origin.Generation, Status: s.Status,
		Size: s.Stack.VirtualSize, Labels: maps.Clone(s.Labels), CreatedAt: s.CreatedAt, Stack: s.Stack.Value(),
		Cut: s.Content.Cut, Consistency: s.Content.Consistency,
	}
}

func lineageOf(o record.Origin) Lineage {
	if o.Tenant == record.ReservedTenant {
		return Lineage{} // an empty volume is a copy of a hidden one; nobody needs to know
	}
	return Lineage{Volume: o.Volume, Checkpoint: o.Checkpoint, Generation: o.Generation, Fenced: o.Fenced}
}

// heldBy reports whether the volume's holder is on the node.
func (v Volume) heldBy(node string) bool {
	g, held := v.Reservation.Holder()
	return held && g.Node == node
}
