package crashfs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	fsName = "sandvol-crashfs"
	// daemonEnv is set in the environment of the process that serves the disk.
	daemonEnv = "SANDVOL_CRASHFS_DAEMON"
	// controlFD is that process's end of the control channel: the first of exec.Cmd.ExtraFiles.
	controlFD = 3
)

// request is one line to the daemon, reply the line it answers.
type request struct {
	Op  string
	N   int64  `json:",omitempty"`
	Dir string `json:",omitempty"`
}

type reply struct {
	N   int    `json:",omitempty"`
	Err string `json:",omitempty"`
}

// Operations of a request.
const (
	opMount    = "mount"    // Dir: a new disk, mounted there
	opOps      = "ops"      // answers the number of operations
	opStopAt   = "stopat"   // N
	opFailSync = "failsync" // N
	opPowerCut = "powercut" // N: the seed
	opErase    = "erase"    // an empty disk in place of the old one
)

// RunDaemon serves a disk and exits, in a process that New started for that purpose. In any other it returns at once.
// It must be the first thing that TestMain does, unless Main is.
func RunDaemon() {
	daemonReady = true
	if os.Getenv(daemonEnv) == "" {
		return
	}
	// An interrupt from the terminal is meant for the test, whose end this process survives just long enough to
	// unmount.
	signal.Ignore(os.Interrupt, unix.SIGTERM)
	control := os.NewFile(controlFD, "control")
	d := &daemon{}
	err := d.run(control)
	d.unmount()
	if err != nil {
		fmt.Fprintln(os.Stderr, "crashfs daemon:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

type daemon struct {
	dir  string
	disk *disk
}

// run answers requests until the other end closes the channel, which the kernel does when the test process is gone.
func (d *daemon) run(control *os.File) error {
	in, out := json.NewDecoder(control), json.NewEncoder(control)
	for {
		var req request
		if err := in.Decode(&req); err != nil {
			return nil
		}
		n, err := d.handle(req)
		rep := reply{N: n}
		if err != nil {
			rep.Err = err.Error()
		}
		if err := out.Encode(rep); err != nil {
			return fmt.Errorf("answer %s: %w", req.Op, err)
		}
	}
}

func (d *daemon) handle(req request) (int, error) {
	switch {
	case req.Op == opMount:
		d.dir = req.Dir
		return 0, d.mount(newDisk())
	case d.disk == nil:
		return 0, errors.New("no disk")
	}
	d.disk.mu.Lock()
	defer d.disk.mu.Unlock()
	switch req.Op {
	case opOps:
		return d.disk.ops, nil
	case opStopAt:
		d.disk.stopAt = int(req.N)
		return 0, nil
	case opFailSync:
		d.disk.failSync = int(req.N)
		return 0, nil
	case opPowerCut:
		return 0, d.replace(d.disk.afterCut(req.N))
	case opErase:
		return 0, d.replace(d.disk.erase())
	}
	return 0, fmt.Errorf("unknown operation %q", req.Op)
}

// replace is called with the old disk dead and locked. Unmounting may make the kernel write back what is dirty, and
// wait for the answer, so the lock is let go.
func (d *daemon) replace(next *disk) error {
	old := d.disk
	old.mu.Unlock()
	defer old.mu.Lock()
	d.unmount()
	return d.mount(next)
}

func (d *daemon) mount(disk *disk) error {
	srv, err := fuse.NewServer(newServer(disk), d.dir, &fuse.MountOptions{
		Name: fsName, FsName: fsName,
		DirectMountStrict:        true, // root needs no fusermount
		ExplicitDataCacheControl: true, // nobody else writes: the kernel's cache is right
		DisableXAttrs:            true,
		DisableReadDirPlus:       true,
		MaxWrite:                 256 << 10, // more does not fit a pipe that go-fuse may splice through
	})
	if err != nil {
		return fmt.Errorf("mount %s: %w", d.dir, err)
	}
	d.disk = disk
	go srv.Serve()
	return nil
}

// unmount takes the mount away even while programs have files open on it: they keep the dead disk.
func (d *daemon) unmount() {
	if d.disk != nil {
		// It fails when the test has unmounted it already.
		_ = unix.Unmount(d.dir, unix.MNT_DETACH)
	}
}
