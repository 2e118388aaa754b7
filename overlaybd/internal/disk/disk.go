package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Punch gives the space of a part of a file back; it reads as zeroes then. It is errors.ErrUnsupported where the file system
// cannot. A Close at the same time cannot make it hit another file that got the same descriptor.
func Punch(f *os.File, off, n int64) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		for {
			failed = unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
			if failed != unix.EINTR { // the runtime's own signals interrupt it too
				return
			}
		}
	})
	if err == nil && failed != nil {
		err = &os.PathError{Op: "punch hole in", Path: f.Name(), Err: failed}
	}
	return err
}
