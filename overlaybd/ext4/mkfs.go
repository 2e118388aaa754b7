package ext4

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sandvol/sandvol/overlaybd"
)

const (
	// MinSize is the smallest device that Format takes: below it there is no room for a journal.
	MinSize = 16 << 20
	// SizeUnit divides the size of every device that Format takes.
	SizeUnit = 1 << 20
)

// ErrToolMissing: mkfs.ext4 is not installed; the message names the package that has it.
var ErrToolMissing = errors.New("ext4: mkfs.ext4 not found")

// The UUID and the hash seed could be any; they are fixed so that equal sizes give equal bytes.
const (
	fixedUUID = "5a4d0701-0b5d-4e34-8001-73616e64766f"
	fixedSeed = "5a4d0702-0b5d-4e34-8002-73616e64766f"
)

// configuration takes the place of the machine's mke2fs.conf: features and ratios must not depend on the distribution
// that a node runs. Every feature is understood by Linux 5.4 and later.
const configuration = `[defaults]
	base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
	default_mntopts = acl,user_xattr
	enable_periodic_fsck = 0
	blocksize = 4096
	inode_size = 256
	inode_ratio = 16384
[fs_types]
	ext4 = {
		features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
	}
`

// Mkfs formats devices with the tool mkfs.ext4. The zero value is ready for use.
type Mkfs struct {
	// Path of the tool; if empty, mkfs.ext4 is looked up in PATH and in the directories for system tools, which the
	// PATH of a service often lacks.
	Path string
	// TempDir is where a sparse file of the device's size is kept while formatting, or the system's default. Its file
	// system must know holes.
	TempDir string
}

// Version names the writer and the revision of its options. It is part of the identity of what it writes and changes
// whenever a change here changes bytes.
func (m Mkfs) Version() string { return "mkfs.ext4/1" }

// Check returns ErrToolMissing if Format could not run.
func (m Mkfs) Check(context.Context) error {
	_, err := m.lookup()
	return err
}

// Format writes an empty ext4 file system over the whole of dev and flushes it. The device must read as zeroes, since
// zeroes are not written. Sizes that are not whole MiB, or below MinSize, are overlaybd.ErrInvalid.
func (m Mkfs) Format(ctx context.Context, dev overlaybd.Device) error {
	size := dev.Size()
	if size < MinSize || size%SizeUnit != 0 {
		return fmt.Errorf("%w: ext4 size %d, want a multiple of %d, at least %d",
			overlaybd.ErrInvalid, size, SizeUnit, MinSize)
	}
	tool, err := m.lookup()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(m.TempDir, "mkfs-")
	if err != nil {
		return fmt.Errorf("ext4: temporary directory: %w", err)
	}
	defer os.RemoveAll(dir)
	image, err := makeImage(ctx, tool, dir, size)
	if err != nil {
		return fmt.Errorf("ext4: format %d bytes: %w", size, err)
	}
	defer image.Close()
	if err := copyData(ctx, dev, image, size); err != nil {
		return fmt.Errorf("ext4: copy to the device: %w", err)
	}
	if err := dev.Flush(); err != nil {
		return fmt.Errorf("ext4: flush the device: %w", err)
	}
	return nil
}

func (m Mkfs) lookup() (string, error) {
	if m.Path != "" {
		if p, err := exec.LookPath(m.Path); err == nil {
			return p, nil
		}
		return "", fmt.Errorf("%w: no program at %s; it is in package e2fsprogs", ErrToolMissing, m.Path)
	}
	dirs := []string{"", "/usr/sbin", "/sbin", "/usr/local/sbin"}
	for _, dir := range dirs {
		if p, err := exec.LookPath(filepath.Join(dir, "mkfs.ext4")); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%w in PATH or %s; install package e2fsprogs", ErrToolMissing, strings.Join(dirs[1:], ", "))
}

// makeImage runs the tool on a new sparse file in dir and returns the file, open for reading.
func makeImage(ctx context.Context, tool, dir string, size int64) (*os.File, error) {
	conf, path := filepath.Join(dir, "mke2fs.conf"), filepath.Join(dir, "image")
	if err := os.WriteFile(conf, []byte(configuration), 0o600); err != nil {
		return nil, err
	}
	image, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := image.Truncate(size); err != nil {
		image.Close()
		return nil, err
	}
	cmd := exec.CommandContext(ctx, tool, arguments(path, size)...)
	// A bare environment: PATH, locale or MKE2FS_ variables of the host program must not change the result.
	cmd.Env = []string{"LC_ALL=C", "MKE2FS_CONFIG=" + conf, "E2FSPROGS_FAKE_TIME=1"}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		image.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%s: %w: %s", tool, err, bytes.TrimSpace(output.Bytes()))
	}
	return image, nil
}

// arguments lists the options of one run; what is not here is in the configuration.
func arguments(path string, size int64) []string {
	extended := []string{
		// The sparse file and the fresh device read as zeroes: nothing needs to be zeroed now or by the kernel later.
		"assume_storage_prezeroed=1",
		"nodiscard",
		"hash_seed=" + fixedSeed,
		"root_owner=0:0",
	}
	return []string{
		"-F", "-q", "-t", "ext4",
		"-b", "4096", // small devices would get 1 KiB, which a loop device with 4 KiB sectors cannot mount
		"-m", "0",
		"-U", fixedUUID,
		"-J", "size=" + strconv.FormatInt(journalMiB(size), 10),
		"-E", strings.Join(extended, ","),
		path,
		strconv.FormatInt(size>>10, 10) + "k",
	}
}

// journalMiB is the journal's size. It is given explicitly since the tool's own choice goes up to 1 GiB and has
// changed between its versions.
func journalMiB(size int64) int64 {
	switch {
	case size < 128<<20:
		return 4
	case size < 1<<30:
		return 16
	case size < 8<<30:
		return 32
	default:
		return 64
	}
}
