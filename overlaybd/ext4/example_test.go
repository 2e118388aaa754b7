package ext4_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount/mounttest"
	"github.com/sandvol/sandvol/overlaybd/ext4"
)

func ExampleWriter() {
	ctx := context.Background()
	dev := mounttest.NewMemDevice(64 << 20) // stands for an overlaybd device
	w, err := ext4.NewWriter(ctx, dev, ext4.Options{Size: dev.Size(), Label: "data"})
	if err != nil {
		panic(err)
	}
	text, made := "hello\n", time.Unix(1_700_000_000, 0)
	for _, e := range []ext4.Entry{
		{Path: "etc", Mode: unix.S_IFDIR | 0o755, Modified: made},
		{Path: "etc/motd", Mode: unix.S_IFREG | 0o644, Modified: made, Size: int64(len(text))},
		{Path: "etc/issue", Link: "etc/motd"},
		{Path: "motd", Mode: unix.S_IFLNK | 0o777, Modified: made, Target: "etc/motd"},
	} {
		if err := w.Add(ctx, e, strings.NewReader(text)); err != nil {
			panic(err)
		}
	}
	if err := w.Finish(ctx); err != nil {
		panic(err)
	}
	if err := dev.Flush(); err != nil {
		panic(err)
	}
	needs, err := ext4.NeedsReplay(dev, dev.Size())
	fmt.Println(needs, err)
	// Output: false <nil>
}
