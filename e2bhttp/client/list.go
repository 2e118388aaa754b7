package client

import (
	"context"
	"iter"
	"net/url"
	"slices"
	"strconv"

	"github.com/sandvol/sandvol/e2bhttp/wire"
)

// ListOptions narrow a listing. The zero value lists everything.
type ListOptions struct {
	// Labels are all to be present with these values. It is for volumes.
	Labels map[string]string
	// Status, where set, is to be equal.
	Status string
	// Name and VolumeID narrow a listing of snapshots.
	Name     string
	VolumeID string
}

// pageLength is how many items are asked for at once: the most that a server gives.
const pageLength = 100

func (o ListOptions) query() url.Values {
	q := url.Values{"limit": {strconv.Itoa(pageLength)}}
	for k, v := range o.Labels {
		q.Add("label", k+"="+v)
	}
	slices.Sort(q["label"])
	for name, v := range map[string]string{"status": o.Status, "name": o.Name, "volumeID": o.VolumeID} {
		if v != "" {
			q.Set(name, v)
		}
	}
	return q
}

// List yields volumes, oldest first. An error ends the sequence.
func (c *Client) List(ctx context.Context, o ListOptions) iter.Seq2[wire.Volume, error] {
	return pages[wire.Volume](ctx, c, "/volumes", o)
}

// Snapshots yields snapshots of all volumes, deleted ones included.
func (c *Client) Snapshots(ctx context.Context, o ListOptions) iter.Seq2[wire.VolumeSnapshot, error] {
	return pages[wire.VolumeSnapshot](ctx, c, "/volume-snapshots", o)
}

// SnapshotsOf yields the snapshots of a volume, by id or name.
func (c *Client) SnapshotsOf(ctx context.Context, ref string, o ListOptions) iter.Seq2[wire.VolumeSnapshot, error] {
	return pages[wire.VolumeSnapshot](ctx, c, "/volumes/"+url.PathEscape(ref)+"/snapshots", o)
}

// pages asks for a page at a time. A server without pages answers everything at once, and names no next one.
func pages[T any](ctx context.Context, c *Client, path string, o ListOptions) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for q := o.query(); ; {
			var next string
			page, err := send[[]T](ctx, c, request{method: "GET", path: path + "?" + q.Encode(), next: &next})
			if err != nil {
				var zero T
				yield(zero, err)
				return
			}
			for _, item := range page {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			q.Set("nextToken", next)
		}
	}
}
