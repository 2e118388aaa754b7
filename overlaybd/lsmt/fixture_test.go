package lsmt

import (
	"io"
	"os"
	"testing"
)

// memoryDir is a directory in memory where the machine has one: what is tested there does not depend on a disk.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "lsmt-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func files(f ...io.ReaderAt) []io.ReaderAt { return f }
