package volume_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sandvol/sandvol/internal/crashfs"
)

func TestMain(m *testing.M) {
	crashfs.RunDaemon()
	goleak.VerifyTestMain(m)
}
