package e2bhttp

import (
	"path"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/volume"
)

// The members by which an entry can name its volume, and its path. Of several for one thing, the first counts.
var (
	volumeKeys = []struct {
		name string
		id   bool
	}{{"name", false}, {"volumeID", true}, {"volumeId", true}, {"volume_id", true}, {"pvName", false}}
	pathKeys = []string{"path", "mountPath", "mount_path"}
)

// decodeEntry reads one entry. Members that it does not know are ignored, and never quoted: a serialised SDK object has a
// token among them.
func decodeEntry(where string, v jsontext.Value) MountEntry {
	e := MountEntry{Where: where}
	if v.Kind() != '{' {
		e.fault = badMount("", "must be an object")
		return e
	}
	f, err := parseFields("entry", v)
	if err != nil {
		e.fault = badMount("", "%s", err.(*problem).message)
		return e
	}
	for _, k := range volumeKeys {
		if ref, ok := f.text(k.name, ""); ok {
			e.Refs = append(e.Refs, MountRef{Ref: ref, ID: k.id})
		}
	}
	e.Path = f.same(pathKeys, wire.InvalidPath)
	e.ReadOnly = f.flags("readOnly", "read_only")
	if mode := string(f.mode()); mode != "" {
		e.Mode = mode
	}
	e.SubPath, _ = f.text("subPath", "")
	if f.fault != nil {
		p := f.fault.(*problem)
		e.fault = badMount(p.code, "%s", p.message)
	}
	return e
}

// same returns the value of the members that are given, which must not differ.
func (f *fields) same(names []string, code string) (text string) {
	for _, name := range names {
		t, ok := f.text(name, code)
		if ok && text != "" && t != text {
			f.fail(code, "%s: differs from another member for the same thing", name)
		}
		if ok && text == "" {
			text = t
		}
	}
	return text
}

// flags returns what members of the same meaning say, nil if none is given.
func (f *fields) flags(names ...string) (set *bool) {
	for _, name := range names {
		if _, ok := f.take(name); !ok {
			continue
		}
		on := f.flag(name)
		if set != nil && *set != on {
			f.fail("", "%s: differs from another member for the same thing", name)
		}
		set = &on
	}
	return set
}

// reserved are guest paths that the guest's kernel and system fill.
var reserved = []string{"/proc", "/sys", "/dev", "/run"}

// checkPath judges a path by itself.
func (r MountRules) checkPath(p string) *mountFault {
	reason := ""
	switch {
	case p == "":
		reason = "is missing"
	case !strings.HasPrefix(p, "/"):
		reason = "must be absolute"
	case p == "/":
		reason = "must not be the root"
	case path.Clean(p) != p:
		reason = "must be clean: no doubled or trailing slash, no . and no .."
	case len(p) > mount.MaxPath:
		reason = "is too long"
	case strings.ContainsFunc(p, unfit):
		reason = "must have no space, comma, colon or control character"
	case slices.ContainsFunc(strings.Split(p, "/"), func(s string) bool { return len(s) > mount.MaxNameLength }):
		reason = "has a name that is too long"
	case slices.ContainsFunc(slices.Concat(reserved, r.Reserved), func(d string) bool { return below(p, d) }):
		reason = "is reserved by the guest"
	default:
		return nil
	}
	return badMount(wire.InvalidPath, "path %q %s", shorten(p), reason)
}

// unfit are characters that mount tables and mount options cannot carry.
func unfit(r rune) bool {
	return r <= ' ' || r == ',' || r == ':' || r == '\\' || r == 0x7f || r == '\uFFFD'
}

func below(p, dir string) bool {
	dir = strings.TrimSuffix(dir, "/")
	return p == dir || strings.HasPrefix(p, dir+"/")
}

// checkSubPath judges a directory inside the volume.
func (r MountRules) checkSubPath(p string) *mountFault {
	switch {
	case p == "":
	case !r.SubPaths:
		return badMount(wire.Unsupported, "subPath %q: this host mounts whole volumes only", shorten(p))
	case strings.HasPrefix(p, "/"), path.Clean(p) != p, p == ".." || strings.HasPrefix(p, "../"), strings.ContainsRune(p, 0):
		return badMount(wire.InvalidPath, "subPath %q: must be relative, clean and inside the volume", shorten(p))
	}
	return nil
}

// checkMode judges what the entry says against what the volume is.
func (e MountEntry) checkMode(v volume.Volume) *mountFault {
	switch {
	case e.Mode != "" && e.Mode != string(v.Mode):
		return badMount(wire.UnsupportedMode, "mode %q: volume %s has mode %q for life", e.Mode, v.ID, v.Mode)
	case v.Mode == volume.ReadOnly && e.ReadOnly != nil && !*e.ReadOnly:
		return badMount(wire.UnsupportedMode, "readOnly false: volume %s is ro and is never written", v.ID)
	}
	return nil
}

// shorten cuts a value that is to be shown.
func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// merge adds the entries of a second source. One that says the very same as another is the same mount; what only partly
// agrees is found by Resolve.
func merge(entries, more []MountEntry) []MountEntry {
	for _, m := range more {
		if !slices.ContainsFunc(entries, m.equal) {
			entries = append(entries, m)
		}
	}
	return entries
}

func (e MountEntry) equal(o MountEntry) bool {
	if e.fault != nil || o.fault != nil || len(e.Refs) == 0 || len(o.Refs) == 0 {
		return false
	}
	return e.Refs[0].Ref == o.Refs[0].Ref && e.Path == o.Path && e.readOnly() == o.readOnly() &&
		e.Mode == o.Mode && e.SubPath == o.SubPath
}

func (e MountEntry) readOnly() bool { return e.ReadOnly != nil && *e.ReadOnly }
