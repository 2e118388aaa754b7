package mount

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sectorSize is the loop device's logical block size: that of every drive, so that what was formatted with any block
// size can be mounted.
const sectorSize = 512

// loop is an attached loop device. It goes away by itself when nothing uses it any more.
type loop struct {
	number int
	fd     int    // -1 once something else keeps it attached
	seq    string // the kernel's number for this use of the device; the next use has another
}

func (l *loop) path() string           { return "/dev/loop" + strconv.Itoa(l.number) }
func (l *loop) sys(name string) string { return fmt.Sprintf("/sys/block/loop%d/%s", l.number, name) }

// attachLoop makes a loop device over the file source, with direct I/O so that a second page cache neither takes
// memory nor holds writes back. The device detaches itself after its last user; until it is mounted that is the
// returned descriptor.
func attachLoop(source string, readOnly bool) (*loop, error) {
	flags := unix.O_RDWR
	if readOnly {
		flags = unix.O_RDONLY
	}
	// Not os.OpenFile: source may be a file that this process serves, and Go's poller would ask it for its state from a
	// thread that then hangs beyond the reach of signals if the answer does not come.
	file, err := unix.Open(source, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", source, err)
	}
	defer unix.Close(file)
	var st unix.Stat_t
	if err := unix.Fstat(file, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", source, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size%sectorSize != 0 {
		return nil, fmt.Errorf("%w: source %s, mode %#o and size %d, want a regular file of whole %d-byte sectors",
			ErrInvalid, source, st.Mode, st.Size, sectorSize)
	}
	l, err := configureFree(source, file, flags)
	if err != nil {
		return nil, fmt.Errorf("loop device for %s: %w", source, err)
	}
	l.seq = readTrimmed(l.sys("diskseq"))
	if gone, err := l.released(); gone || err != nil {
		l.letGo()
		return nil, fmt.Errorf("%w: %s is not in /sys/block, where its end is to be seen: %w", ErrUnsupported, l.path(), err)
	}
	return l, nil
}

// configureFree takes a free device. Between asking for one and using it, another process may have taken it.
func configureFree(source string, file, flags int) (*loop, error) {
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/loop-control: %w", err)
	}
	defer unix.Close(control)
	const attempts = 64
	for range attempts {
		n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free one: %w", err)
		}
		l := &loop{number: n}
		err = l.configure(source, file, flags)
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENXIO) {
			return nil, fmt.Errorf("%s: %w", l.path(), err)
		}
		time.Sleep(rand.N(5 * time.Millisecond)) // apart from others that lost the same race
	}
	return nil, fmt.Errorf("%w: %d free ones in turn were taken by others", ErrBusy, attempts)
}

func (l *loop) configure(source string, file, flags int) error {
	fd, err := unix.Open(l.path(), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	config := unix.LoopConfig{Fd: uint32(file), Size: sectorSize}
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO
	if flags == unix.O_RDONLY {
		config.Info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], source) // for people; the kernel knows the whole path
	if err := unix.IoctlLoopConfigure(fd, &config); err != nil {
		_ = unix.Close(fd) // nothing was attached
		return err
	}
	l.fd = fd
	return nil
}

// letGo closes the descriptor: from now on the device lives as long as its mount.
func (l *loop) letGo() {
	if l.fd >= 0 {
		_ = unix.Close(l.fd) // a block device without buffered writes of ours
		l.fd = -1
	}
}

// released says whether the kernel has let go of the file. The device number alone does not tell: somebody else may
// have attached another file since.
func (l *loop) released() (bool, error) {
	switch _, err := os.Stat(l.sys("loop/backing_file")); {
	case errors.Is(err, os.ErrNotExist):
		return true, nil
	case err != nil:
		return false, err
	}
	return readTrimmed(l.sys("diskseq")) != l.seq, nil
}

// awaitRelease waits until the kernel has let go of the file; the last user's close returns a little before that.
func (l *loop) awaitRelease(ctx context.Context) error { return poll(ctx, l.released) }

// size is the device's size in bytes.
func (l *loop) size() (int64, error) {
	n, err := strconv.ParseInt(readTrimmed(l.sys("size")), 10, 64)
	return n * sectorSize, err
}

// readTrimmed returns "" for files that are not there, as diskseq before Linux 5.15.
func readTrimmed(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
