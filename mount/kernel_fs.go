package mount

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// superblock is how a file system is known by its first bytes.
type superblock struct {
	fsType string
	offset int
	magic  []byte
	// options for a file system that is written to, and for one that is only read.
	write, read []string
}

var superblocks = []superblock{
	// discard: what the guest deletes is freed in the volume. noload: the journal is not replayed, since that would
	// write.
	{"ext4", 1024 + 56, []byte{0x53, 0xef}, []string{"discard"}, []string{"ro", "noload"}},
	// nouuid: volumes that stem from one another carry one UUID, and xfs would not mount two of them.
	{"xfs", 0, []byte("XFSB"), []string{"discard", "nouuid"}, []string{"ro", "norecovery", "nouuid"}},
	{"erofs", 1024, binary.LittleEndian.AppendUint32(nil, 0xe0f5e1e2), []string{"ro"}, []string{"ro"}},
}

// probe finds the file system on a device.
func probe(fd int) (superblock, error) {
	head := make([]byte, 2048)
	n, err := unix.Pread(fd, head, 0)
	if err != nil {
		return superblock{}, fmt.Errorf("read the superblock: %w", err)
	}
	for _, s := range superblocks {
		if end := s.offset + len(s.magic); end <= n && bytes.Equal(head[s.offset:end], s.magic) {
			return s, nil
		}
	}
	return superblock{}, fmt.Errorf("%w: no ext4, xfs or erofs superblock", ErrUnsupported)
}

// newMount mounts the device without attaching it to a directory yet: until it is attached, closing the descriptor
// undoes everything, so that a step that fails or comes too late leaves nothing behind.
func newMount(device string, s superblock, readOnly bool) (int, error) {
	options, attributes := s.write, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOATIME
	if readOnly {
		options = s.read
	}
	if slices.Contains(options, "ro") {
		attributes |= unix.MOUNT_ATTR_RDONLY
	}
	fd, err := unix.Fsopen(s.fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("file system %s: %w", s.fsType, err)
	}
	defer unix.Close(fd)
	if err := unix.FsconfigSetString(fd, "source", device); err != nil {
		return -1, explainMount(fd, "source "+device, err)
	}
	for _, o := range options {
		if err := unix.FsconfigSetFlag(fd, o); err != nil {
			return -1, explainMount(fd, "option "+o, err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return -1, explainMount(fd, "mount "+s.fsType, err)
	}
	m, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return -1, explainMount(fd, "mount "+s.fsType, err)
	}
	return m, nil
}

// explainMount adds what the file system says about a failure; the error number is nearly always EINVAL.
func explainMount(fd int, what string, err error) error {
	var said []string
	buf := make([]byte, 1024)
	for {
		n, rerr := unix.Read(fd, buf)
		if rerr != nil || n <= 0 {
			break
		}
		said = append(said, strings.TrimSpace(string(buf[:n])))
	}
	if len(said) == 0 {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w (%s)", what, err, strings.Join(said, "; "))
}

// attachMount puts the mount onto the directory.
func attachMount(m, dir int) error {
	err := unix.MoveMount(m, "", dir, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("target was removed meanwhile: %w", err)
	}
	return err
}
