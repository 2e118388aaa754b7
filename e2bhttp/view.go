package e2bhttp

import (
	"time"

	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/volume"
)

// ViewVolume returns a volume as the API shows it, for hosts that show volumes in answers of their own.
func ViewVolume(v volume.Volume) wire.Volume {
	w := wire.Volume{VolumeID: v.ID, Name: nameOf(v), Mode: string(v.Mode), Status: string(v.Status),
		SizeMB: v.Size / volume.MiB, CreatedAt: stamp(v.CreatedAt), Labels: v.Labels}
	if l := v.Lineage; l != (volume.Lineage{}) {
		w.Lineage = &wire.Lineage{VolumeID: l.Volume, SnapshotID: l.Checkpoint, Generation: l.Generation}
		w.Source = &wire.Source{VolumeID: l.Volume}
		if l.Checkpoint != "" {
			w.Source = &wire.Source{SnapshotID: l.Checkpoint}
		}
	}
	// The owner is a sandbox of the same tenant: no other can have acquired the volume.
	if grant, held := v.Reservation.Holder(); held {
		w.Reservation = &wire.Reservation{SandboxID: grant.Owner, Phase: string(v.Reservation.Phase),
			Since: v.Reservation.Since, SuspectSince: stamp(v.SuspectSince)}
	}
	return w
}

// nameOf is what a volume is called by: E2B's name is never empty.
func nameOf(v volume.Volume) string {
	if v.Name == "" {
		return v.ID
	}
	return v.Name
}

func stamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func viewSnapshot(k volume.Checkpoint) wire.VolumeSnapshot {
	names := []string{}
	if k.Name != "" {
		names = append(names, k.Name)
	}
	return wire.VolumeSnapshot{SnapshotID: k.ID, Names: names, VolumeID: k.Volume, Status: string(k.Status),
		SizeMB: k.Size / volume.MiB, Consistency: string(k.Consistency), Generation: k.Generation,
		CreatedAt: stamp(k.CreatedAt)}
}

// withToken is the answer about one volume.
func (c *call) withToken(v volume.Volume) wire.VolumeAndToken {
	out := wire.VolumeAndToken{Volume: ViewVolume(v)}
	if c.h.tokens != nil {
		out.Token = c.h.tokens(c.r.Context(), c.tenant, v)
	}
	return out
}

func (c *call) replyVolume(status int, v volume.Volume) error {
	writeJSON(c.w, status, c.withToken(v))
	return nil
}
