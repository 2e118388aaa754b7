package ext4

import (
	"context"
	"fmt"

	"github.com/sandvol/sandvol/overlaybd"
)

// Formatter makes empty file systems. It has no state and needs nothing of the machine.
type Formatter struct{}

// Version names the writer and the revision of its bytes. It is part of the identity of what it writes and changes
// whenever a change here changes bytes.
func (Formatter) Version() string { return "ext4/1" }

// Check returns nil: nothing can be missing.
func (Formatter) Check(context.Context) error { return nil }

// Format writes an empty ext4 file system over the whole of dev and flushes it. The device must read as zeroes, since
// zeroes are not written. Sizes that are no multiple of SizeUnit from MinSize to MaxSize are overlaybd.ErrInvalid.
func (Formatter) Format(ctx context.Context, dev overlaybd.Device) error {
	w, err := NewWriter(ctx, dev, Options{Size: dev.Size()})
	if err != nil {
		return err
	}
	if err := w.Finish(ctx); err != nil {
		return err
	}
	if err := dev.Flush(); err != nil {
		return fmt.Errorf("ext4: flush the device: %w", err)
	}
	return nil
}
