package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store"
)

// Config is what a Repository cannot do without.
type Config struct {
	// Store is what all nodes share.
	Store store.Store
	// Dir is this node's own directory: journal, open drives, copies of layers. One process uses it at a time.
	Dir string
	// Node is this node's name, unique among the nodes that share the store, and the same after a restart.
	Node string
}

// Formatter makes an empty file system. Its output depends only on the device's size and on Version.
type Formatter interface {
	// Version names the writer and its options; a change makes new volumes start from a new hidden one.
	Version() string
	// Check reports what is missing to run, before anything is written.
	Check(ctx context.Context) error
	// Format writes a file system over the whole of an empty device.
	Format(ctx context.Context, dev overlaybd.Device) error
}

// Option changes how a Repository works.
type Option func(*settings)

type settings struct {
	formatter Formatter
	log       *slog.Logger
	clock     func() time.Time
	engine    []overlaybd.Option

	compactAbove, compactTo int
	local                   localSettings
	nodeLife
}

// WithFormatter enables empty volumes.
func WithFormatter(f Formatter) Option { return func(s *settings) { s.formatter = f } }

// WithLogger sends what happens in the background to a logger; the default discards it.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.log = l } }

// WithClock replaces time.Now for the times in records. No decision depends on it but how long deleted data is kept.
func WithClock(now func() time.Time) Option { return func(s *settings) { s.clock = now } }

// WithEngine passes options to the layer engine.
func WithEngine(opts ...overlaybd.Option) Option {
	return func(s *settings) { s.engine = append(s.engine, opts...) }
}

// Source is what a new volume starts from. The zero Source is an empty file system.
type Source struct{ kind, ref string }

const (
	sourceVolume     = "volume"
	sourceCheckpoint = "checkpoint"
)

// Empty is an empty ext4 file system.
func Empty() Source { return Source{} }

// FromVolume is the last published state of a volume, by id or name.
func FromVolume(ref string) Source { return Source{sourceVolume, ref} }

// FromCheckpoint is a checkpoint, by id.
func FromCheckpoint(id string) Source { return Source{sourceCheckpoint, id} }

// CreateOptions say what to create. The zero value is an empty exclusive volume of DefaultSize without a name.
type CreateOptions struct {
	// Name is unique among the tenant's volumes: 1 to 128 characters of A-Z a-z 0-9 _ -, and not a UUID. It may be empty.
	Name string
	// Mode is Exclusive when empty. An ro volume needs a source.
	Mode   Mode
	Source Source
	// Size in bytes; 0 is DefaultSize for an empty volume and the source's size for a copy, which can be larger, never
	// smaller.
	Size   int64
	Labels map[string]string
	// Token makes a repeated call return the volume that the first one made. It needs a Name.
	Token string
	// Flush has the holder of the source publish its newest writes first. It works on the holder's node only.
	Flush bool
}

// Label limits.
const (
	maxLabels     = 64
	maxLabelValue = 256
)

var labelKey = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$`)

func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("%w: labels: %d given, at most %d allowed", ErrInvalid, len(labels), maxLabels)
	}
	for k, v := range labels {
		if !labelKey.MatchString(k) {
			return fmt.Errorf("%w: label %q: must be 1 to 63 characters of A-Z a-z 0-9 . _ / -, ends alphanumeric",
				ErrInvalid, k)
		}
		if len(v) > maxLabelValue {
			return fmt.Errorf("%w: label %q: value has %d bytes, at most %d allowed", ErrInvalid, k, len(v), maxLabelValue)
		}
	}
	return nil
}

func checkSize(size int64) error {
	if size < MinSize || size > MaxSize || size%MiB != 0 {
		return fmt.Errorf("%w: size %d: must be a multiple of 1 MiB from 16 MiB to 16 TiB", ErrInvalid, size)
	}
	return nil
}

func checkMode(m Mode) (Mode, error) {
	switch m {
	case "":
		return Exclusive, nil
	case Exclusive, ReadOnly:
		return m, nil
	}
	return "", fmt.Errorf("%w: unsupported_mode %q: modes are %q (default) and %q", ErrUnsupported, m, Exclusive, ReadOnly)
}

// check fills defaults and validates, before any request is sent.
func (o CreateOptions) check() (CreateOptions, error) {
	var err error
	if o.Mode, err = checkMode(o.Mode); err != nil {
		return o, err
	}
	if o.Name != "" {
		if err := record.CheckName(o.Name); err != nil {
			return o, err
		}
	}
	if o.Token != "" {
		if o.Name == "" {
			return o, fmt.Errorf("%w: token: needs a name to find the earlier volume by", ErrInvalid)
		}
		if err := record.CheckID("token", o.Token); err != nil {
			return o, err
		}
	}
	if err := o.Source.check(); err != nil {
		return o, err
	}
	empty := o.Source == Empty()
	switch {
	case empty && o.Mode == ReadOnly:
		return o, fmt.Errorf("%w: mode ro without a source: nothing could ever be written to it", ErrInvalid)
	case o.Flush && o.Source.kind != sourceVolume:
		return o, fmt.Errorf("%w: flush true: needs a source volume, only a volume has a holder", ErrInvalid)
	case empty && o.Size == 0:
		o.Size = DefaultSize
	}
	if o.Size != 0 {
		if err := checkSize(o.Size); err != nil {
			return o, err
		}
	}
	return o, checkLabels(o.Labels)
}

func (s Source) check() error {
	switch {
	case s.kind == sourceCheckpoint:
		return record.CheckID("source checkpoint", s.ref)
	case s.kind == sourceVolume && !record.IsVolumeID(s.ref):
		return record.CheckName(s.ref)
	}
	return nil
}

// digest identifies what a create call asked for, so that a token is not used for two different requests. It is of the
// request alone: a source that has changed since does not make a repeated request another one.
func (o CreateOptions) digest() (string, error) {
	body, err := json.Marshal(map[string]any{
		"name": o.Name, "mode": o.Mode, "sourceKind": o.Source.kind, "source": o.Source.ref,
		"size": o.Size, "labels": o.Labels,
	}, json.Deterministic(true))
	if err != nil {
		return "", fmt.Errorf("digest of the request: %w", err)
	}
	sum := sha256.Sum256(body)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}
