package posixstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"
)

// Lines of /proc/self/mountinfo. Two mounts lie over each other at /srv/b.
const fixture = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /srv/a rw,relatime shared:2 - nfs4 nas:/a rw,vers=4.2,lookupcache=none,acregmin=0,acregmax=0,acdirmin=0,acdirmax=0
31 22 0:41 / /srv/b rw,relatime - nfs4 nas:/b rw,vers=4.2,lookupcache=none,noac,sync
32 31 0:42 / /srv/b rw,relatime - nfs nas:/b rw,vers=3,rsize=1048576,hard
33 22 0:43 / /srv/c rw,relatime - nfs4 nas:/c rw,vers=4.2,lookupcache=pos,actimeo=0
34 22 0:44 / /srv/d rw,relatime - nfs4 nas:/d rw,vers=4.2,lookupcache=none,acregmin=0,acregmax=0
35 22 0:45 / /srv/e rw,relatime - ceph mon:/ rw
36 30 8:2 /data /srv/a/local rw,relatime - ext4 /dev/sdb1 rw
`

func TestMountsThatCacheAreRefused(t *testing.T) {
	for dir, missing := range map[string][]string{
		"/var/lib/x":    nil,
		"/srv/a":        nil,
		"/srv/a/deep/x": nil,
		"/srv/a/local":  nil,
		"/srv/b/x":      {"lookupcache=none", "actimeo=0"},
		"/srv/bb":       nil,
		"/srv/c/x":      {"lookupcache=none"},
		"/srv/d":        {"actimeo=0"},
		"/srv/e/x":      nil,
	} {
		mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(fixture), mountinfo.ParentsFilter(dir))
		if err != nil {
			t.Fatal(err)
		}
		err = checkNFS(topmost(mounts))
		if (err == nil) != (missing == nil) {
			t.Errorf("%s: %v, want missing options %v", dir, err, missing)
		}
		var me *MountError
		if err == nil || !errors.Is(err, ErrCachingMount) || !errors.As(err, &me) {
			continue
		}
		if diff := cmp.Diff(missing, me.Missing); diff != "" {
			t.Errorf("%s: missing options (-want +got):\n%s", dir, diff)
		}
		if !strings.Contains(err.Error(), me.Mountpoint) || !strings.HasPrefix(dir, me.Mountpoint) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
