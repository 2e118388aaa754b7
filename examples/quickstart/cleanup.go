package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/sandvol/sandvol/volume"
)

// deleteAll deletes every sandbox, the snapshot and every volume of the tenant.
func (d *demo) deleteAll(ctx context.Context) (string, error) {
	sandboxes := d.readers()
	sandboxes[first], sandboxes[fork], sandboxes[restored] = d.b, d.a, d.a
	for sandbox, n := range sandboxes {
		if err := n.Delete(ctx, id(sandbox)); err != nil {
			return "", err
		}
	}
	if err := d.b.Delete(ctx, d.kept); err != nil {
		return "", err
	}
	volumes := 0
	for v, err := range d.a.volumes.List(ctx, volume.ListOptions{}) {
		if err == nil {
			err = d.a.volumes.Delete(ctx, v.ID)
		}
		if err != nil {
			return "", err
		}
		volumes++
	}
	return fmt.Sprintf("%d sandboxes, which published what they wrote last, 1 snapshot, %d volumes",
		len(sandboxes), volumes), nil
}

// collect runs the collector twice: the first run lets go of what was deleted, the second one removes it.
func (d *demo) collect(ctx context.Context) (string, error) {
	var atOnce time.Duration // no time to undo; the default is a day
	o := volume.CollectOptions{MinAge: &atOnce, DropUnusedBases: true}
	if _, err := d.a.volumes.Repository().Collect(ctx, o); err != nil {
		return "", err
	}
	r, err := d.b.volumes.Repository().Collect(ctx, o)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d layers removed, %s", len(r.Candidates), bytesText(r.CandidateBytes)), nil
}

// nothingLeft stops both nodes and fails if anything of the demonstration is still there.
func (d *demo) nothingLeft(ctx context.Context) (string, error) {
	if err := d.close(); err != nil {
		return "", err
	}
	for e, err := range d.store.List(ctx, "v1/layers/", "", 0) {
		if err != nil {
			return "", err
		}
		return "", fmt.Errorf("layer %s is left", e.Key)
	}
	left, err := leftBehind(d.dir)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	return "0 layers, 0 mounts, 0 loop devices, 0 processes", err
}

// leftBehind names every mount and loop device that uses dir, and every process that this one has started.
func leftBehind(dir string) ([]string, error) {
	mounts, err := mountsBelow(dir)
	if err != nil {
		return nil, err
	}
	loops, err := loopsOn(dir)
	if err != nil {
		return nil, err
	}
	children, err := childProcesses()
	return append(append(mounts, loops...), children...), err
}

func mountsBelow(dir string) (found []string, err error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	for _, m := range mounts {
		found = append(found, "mount "+m.Mountpoint)
	}
	return found, err
}

// loopsOn reads what the kernel says about each loop device. It opens none: one that hangs would hang its reader.
func loopsOn(dir string) (found []string, err error) {
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, name := range names {
		file, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // detached in this moment
		}
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(string(file), dir+"/") {
			found = append(found, "loop device "+strings.Split(name, "/")[3])
		}
	}
	return found, err
}

func childProcesses() (found []string, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // ended in this moment
		}
		// pid (name) state parent ...: the name may hold anything, so the fields are counted from its last parenthesis.
		_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(os.Getpid()) {
			found = append(found, "process "+strings.Split(name, "/")[2])
		}
	}
	return found, err
}
