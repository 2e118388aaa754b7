package k8sadapter

import (
	"errors"
	"strings"
	"testing"
)

func testAdapter() *Adapter {
	return &Adapter{cfg: Config{Protected: DefaultProtected, MaxMounts: DefaultMaxMounts}}
}

func TestMountPaths(t *testing.T) {
	a := testAdapter()
	long := strings.Repeat("a", maxPart)
	for _, good := range []string{"/data", "/a..b", "/..a/b", "/Proc", "/home/user/data", "/mnt/data", "/" + long, "/runner",
		"/data with space", "/usr2", "/é"} {
		if err := a.checkPath(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "data", "/", "/data/", "//data", "/./data", "/a/../b", "/..", "/a\x00b", "/a\nb", "/a\x7fb",
		"/\xff", "/" + long + "a", strings.Repeat("/"+long, 17), "/proc", "/proc/1", "/sys/x", "/dev/shm", "/run", "/run/csi",
		"/run/csi/x", "/var", "/var/run", "/var/run/csi", "/etc", "/etc/x", "/usr/lib", "/bin", "/sbin/x", "/lib", "/lib64",
		"/mnt", "/mnt/envd", "/mnt/envd/x"} {
		if a.checkPath(bad) == nil {
			t.Errorf("%.40q is accepted", bad)
		}
	}
}

// a sub-path is relative and stays inside the volume.
func TestSubPaths(t *testing.T) {
	for _, good := range []string{"", "a", "sub/dir", "..a", "a..b", "-x"} {
		if err := checkSubPath(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"/a", ".", "..", "../a", "a/..", "a/../b", "a/../../b", "a//b", "a/", "./a", "a\x00", "a\n", "\xff",
		strings.Repeat("a", maxPart+1)} {
		if checkSubPath(bad) == nil {
			t.Errorf("%.40q is accepted", bad)
		}
	}
}

func TestPathsMayNotBeNested(t *testing.T) {
	a := testAdapter()
	request := func(template []string, paths ...string) error {
		r := Request{TemplatePaths: template}
		for _, p := range paths {
			r.Mounts = append(r.Mounts, Mount{Path: p})
		}
		faults := a.checkRequest("ns", r)
		for i := range r.Mounts {
			faults = errors.Join(faults, errors.Join(a.checkPaths(r, i)...))
		}
		return faults
	}
	for _, good := range [][]string{{}, {"/a", "/b"}, {"/a", "/ab"}, {"/a/b", "/a/c"}, {"/a", "/A"}} {
		if err := request(nil, good...); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range [][]string{{"/a", "/a"}, {"/a", "/a/b"}, {"/a/b", "/a"}, {"/x", "/a/b/c", "/a"}} {
		if request(nil, bad...) == nil {
			t.Errorf("%q are accepted", bad)
		}
	}
	for path, ok := range map[string]bool{"/t": false, "/t/x": false, "/": false, "/u": true} {
		if err := request([]string{"/t"}, path); (err == nil) != ok {
			t.Errorf("template mounts /t, request %q: %v", path, err)
		}
	}
	if request(nil, strings.Split(strings.Repeat("/x,", DefaultMaxMounts+1), ",")...) == nil {
		t.Error("too many mounts are accepted")
	}
}
