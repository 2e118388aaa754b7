package overlaybd

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// Defaults of an Engine.
const (
	DefaultReadTimeout = 30 * time.Second
	// DefaultSealAt leaves room below the format's limit of 999,936 segments a layer.
	DefaultSealAt = 900_000
	// DefaultReclaimRatio and DefaultReclaimFloor say when a device gives the space of overwritten data back.
	DefaultReclaimRatio = 0.5
	DefaultReclaimFloor = 64 << 20
)

// Engine opens stacks as block devices. It has no state of its own: devices do not know of each other.
type Engine struct {
	cfg         Config
	readTimeout time.Duration
	sealAt      int
	reclaimAt   reclaimLimits
	checkChain  bool
	splitAt     int   // index entries at which a merged run becomes several layers
	mergeRate   int64 // bytes a second; 0: any
	log         *slog.Logger
	boot        string // boot id to use in place of the machine's; empty: that one
}

// Option changes a default of an Engine.
type Option func(*Engine)

// WithReadTimeout bounds a read of a layer that is not a local file. A layer that takes longer is ErrUnavailable.
func WithReadTimeout(d time.Duration) Option { return func(e *Engine) { e.readTimeout = d } }

// WithSealAt sets the number of live segments at which a device seals its upper by itself.
func WithSealAt(n int) Option { return func(e *Engine) { e.sealAt = n } }

// WithReclaim sets when a device gives the space of overwritten data of its upper back, in the background: when that is
// at least the ratio of all its bytes, and at least floor bytes. What the last time could not give back does not count.
// With a ratio above 1 only Reclaim does it.
func WithReclaim(ratio float64, floor int64) Option {
	return func(e *Engine) { e.reclaimAt = reclaimLimits{ratio, floor} }
}

// WithMergeRate bounds how many bytes a second Merge and MergeParts write, and ReplaceLayers reads back, so that they
// leave the disk and the network to the devices. By default there is no bound.
func WithMergeRate(bytesPerSecond int64) Option {
	return func(e *Engine) { e.mergeRate = bytesPerSecond }
}

// WithChainCheck makes devices refuse a stack, ErrCorrupt, in which a layer names another parent than the layer below
// it, unless one of the two has no uuid. Without it only what a device's own directory holds is checked: foreign
// stacks whose uuids say nothing are common.
func WithChainCheck() Option { return func(e *Engine) { e.checkChain = true } }

// WithBootID names the present boot of the machine, for a system that has no /proc/sys/kernel/random/boot_id.
// Processes of one boot must give the same text, and those of another boot another one: by it a device tells a kill,
// which loses no write, from a power cut, which loses what was not flushed.
func WithBootID(id string) Option { return func(e *Engine) { e.boot = id } }

// WithLogger sets where recoveries and failures of background work are reported. By default nowhere.
func WithLogger(l *slog.Logger) Option { return func(e *Engine) { e.log = l } }

// New returns an Engine.
func New(cfg Config, opts ...Option) (*Engine, error) {
	e := &Engine{cfg: cfg, readTimeout: DefaultReadTimeout, sealAt: DefaultSealAt, splitAt: lsmt.MaxSegments,
		reclaimAt: reclaimLimits{DefaultReclaimRatio, DefaultReclaimFloor}, log: slog.New(slog.DiscardHandler)}
	for _, o := range opts {
		o(e)
	}
	switch {
	case cfg.Open == nil:
		return nil, lsmt.Invalid("config", "without Open", "complete")
	case e.readTimeout <= 0:
		return nil, lsmt.Invalid("read timeout", e.readTimeout, "positive")
	case e.sealAt < minSealAt || e.sealAt > lsmt.MaxSegments:
		return nil, lsmt.Invalid("seal limit", e.sealAt, fmt.Sprintf("%d to %d segments", minSealAt, lsmt.MaxSegments))
	case !(e.reclaimAt.ratio > 0):
		return nil, lsmt.Invalid("reclaim ratio", e.reclaimAt.ratio, "above 0")
	case e.mergeRate < 0:
		return nil, lsmt.Invalid("merge rate", e.mergeRate, "not negative")
	case e.reclaimAt.floor <= 0:
		return nil, lsmt.Invalid("reclaim floor", e.reclaimAt.floor, "above 0")
	}
	return e, nil
}

// minSealAt is the least number of segments that takes any one write: it can split a segment in two and stand between.
const minSealAt = 3

// MaxVirtualSize is the greatest size of a disk in bytes: the format has 50 bits for a sector's address.
const MaxVirtualSize = (1<<50 - 1) * SectorSize

func checkStack(s Stack) error {
	if err := checkSize("virtual size", s.VirtualSize); err != nil {
		return err
	}
	if len(s.Layers) > lsmt.MaxLowers {
		return tooManyLayers(len(s.Layers))
	}
	for i, l := range s.Layers {
		if err := checkCodec(fmt.Sprintf("codec of layer %d", i), l.Codec); err != nil {
			return err
		}
	}
	return nil
}

func checkSize(field string, n int64) error {
	if n <= 0 || n > MaxVirtualSize || n%SectorSize != 0 {
		return lsmt.Invalid(field, n, fmt.Sprintf("a multiple of %d, above 0, at most %d", SectorSize, int64(MaxVirtualSize)))
	}
	return nil
}

// checkRange checks an access of n bytes at off. It does not look at the size of the disk.
func checkRange(off, n int64) error {
	if off < 0 || off%SectorSize != 0 {
		return lsmt.Invalid("offset", off, fmt.Sprintf("a multiple of %d, not negative", SectorSize))
	}
	if n < 0 || n%SectorSize != 0 {
		return lsmt.Invalid("length", n, fmt.Sprintf("a multiple of %d, not negative", SectorSize))
	}
	return nil
}
