package exposed

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount"
)

// Claim takes the lock beside a directory, which the kernel drops with the process that holds it, and returns the open lock.
// Who has it knows without asking anybody that what is in the directory is a dead process's.
func Claim(dir string) (*os.File, error) {
	// The file stays when the lock is given up: who has opened it and waits must get the same lock as who comes later.
	f, err := os.OpenFile(dir+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w: another process serves it", mount.ErrExists)
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
