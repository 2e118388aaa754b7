package e2bhttp

import (
	"context"
	"iter"
	"net/http"

	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/volume"
)

// snapshots serves GET /volume-snapshots.
func (c *call) snapshots() error {
	id, err := c.query("volumeID")
	if err != nil {
		return err
	}
	if id != "" && !wellFormed(id) {
		return bad("", "query parameter volumeID: not a volume's id")
	}
	return c.listSnapshots(id)
}

// volumeSnapshots serves GET /volumes/{volumeID}/snapshots.
func (c *call) volumeSnapshots() error {
	v, err := c.volume(c.r.Context())
	if err != nil {
		return err
	}
	return c.listSnapshots(v.ID)
}

// listSnapshots lists a tenant's checkpoints, those of one volume, or those of a name.
func (c *call) listSnapshots(volumeID string) error {
	kept, err := can[Snapshots](c.volumes, "snapshots")
	if err != nil {
		return err
	}
	o, err := c.listOptions()
	if err != nil {
		return err
	}
	o.Volume = volumeID
	name, err := c.query("name")
	if err != nil {
		return err
	}
	return reply(c, o, named(kept.Checkpoints, name), viewSnapshot, func(k volume.Checkpoint) string { return k.ID })
}

type checkpoints = func(context.Context, volume.ListOptions) iter.Seq2[volume.Checkpoint, error]

// named narrows a listing to checkpoints of a name. The limit then counts those.
func named(list checkpoints, name string) checkpoints {
	if name == "" {
		return list
	}
	return func(ctx context.Context, o volume.ListOptions) iter.Seq2[volume.Checkpoint, error] {
		o.Limit = 0
		return func(yield func(volume.Checkpoint, error) bool) {
			for k, err := range list(ctx, o) {
				if (err != nil || k.Name == name) && !yield(k, err) {
					return
				}
			}
		}
	}
}

// getSnapshot serves GET /volume-snapshots/{snapshotID}.
func (c *call) getSnapshot() error {
	k, err := c.checkpoint(c.id)
	if err != nil {
		return err
	}
	writeJSON(c.w, http.StatusOK, viewSnapshot(k))
	return nil
}

// checkpoint reads a checkpoint.
func (c *call) checkpoint(id string) (volume.Checkpoint, error) {
	kept, err := can[Snapshots](c.volumes, "snapshots")
	if err != nil {
		return volume.Checkpoint{}, err
	}
	if !wellFormed(id) {
		return volume.Checkpoint{}, missing(kindSnapshot, id)
	}
	k, err := kept.Checkpoint(c.r.Context(), id)
	return k, lookup(err, kindSnapshot, id)
}

// deleteSnapshot serves DELETE /volume-snapshots/{snapshotID}.
func (c *call) deleteSnapshot() error {
	kept, err := can[Snapshots](c.volumes, "snapshots")
	if err != nil {
		return err
	}
	if !wellFormed(c.id) {
		return missing(kindSnapshot, c.id)
	}
	if err := kept.DeleteCheckpoint(c.r.Context(), c.id); err != nil {
		return lookup(err, kindSnapshot, c.id)
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// snapshot serves POST /volumes/{volumeID}/snapshots.
func (c *call) snapshot() error {
	kept, err := can[Snapshots](c.volumes, "snapshots")
	if err != nil {
		return err
	}
	f, err := c.fields(true)
	if err != nil {
		return err
	}
	o := volume.SnapshotOptions{Name: f.label(), Flush: f.flag("flush")}
	if f.fault != nil {
		return f.fault
	}
	token, err := c.token()
	if err != nil {
		return err
	}
	v, err := c.volume(c.r.Context())
	if err != nil {
		return err
	}
	if token != "" {
		o.ID = snapshotID(v.ID, token)
	}
	k, err := kept.Snapshot(c.r.Context(), v.ID, o)
	if err != nil {
		return gone(err, kindVolume, c.id)
	}
	if k.Name != o.Name {
		return &problem{status: http.StatusUnprocessableEntity, code: wire.IdempotencyMismatch,
			message: "this idempotency key made a snapshot of another name"}
	}
	writeJSON(c.w, http.StatusCreated, viewSnapshot(k))
	return nil
}

// label returns the name for a snapshot, which need not be unique and may be anything that a volume's may be.
func (f *fields) label() string {
	name, given := f.text("name", wire.InvalidName)
	if given && (!namePattern.MatchString(name) || len(name) > maxName) {
		f.fail(wire.InvalidName, "name %.140q: must be 1 to %d characters of A-Z a-z 0-9 _ -", name, maxName)
	}
	return name
}

// snapshotID is the id that a repeated request finds its checkpoint by. Like those that volume.NewCheckpointID makes, it
// begins with the volume's id.
func snapshotID(volumeID, token string) string { return volumeID + "_" + token[:32] }
