package k8sadapter

import (
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Linux's limits.
const (
	maxPath = 4095
	maxPart = 255
)

// checkPath judges a mount path by itself. The pipeline makes a symbolic link there, as root: a path that is not what it
// looks like would be made somewhere else.
func (a *Adapter) checkPath(p string) error {
	reason := textFault(p)
	switch {
	case p == "":
		reason = "is missing"
	case reason != "":
	case !strings.HasPrefix(p, "/"):
		reason = "must be absolute"
	case p == "/":
		reason = "must not be the root"
	case path.Clean(p) != p:
		reason = "must be clean: no doubled or trailing slash, no . and no .."
	default:
		if i := slices.IndexFunc(a.cfg.Protected, func(d string) bool { return nested(p, d) }); i >= 0 {
			reason = "is, holds or is inside " + a.cfg.Protected[i] + ", which the sandbox needs"
		}
	}
	if reason != "" {
		return refuse("", MountPath, "path %q %s", shorten(p), reason)
	}
	return nil
}

// checkSubPath judges a directory inside a volume.
func checkSubPath(p string) error {
	reason := textFault(p)
	switch {
	case p == "":
		return nil
	case reason != "":
	case strings.HasPrefix(p, "/"):
		reason = "must be relative"
	case path.Clean(p) != p, p == ".", p == "..", strings.HasPrefix(p, "../"):
		reason = "must be clean and inside the volume: no doubled or trailing slash, no . and no .."
	}
	if reason != "" {
		return refuse("", SubPath, "sub-path %q %s", shorten(p), reason)
	}
	return nil
}

// textFault says what keeps a text from being a path. Control characters could forge a line of somebody's log.
func textFault(p string) string {
	switch {
	case !utf8.ValidString(p):
		return "is not UTF-8"
	case strings.ContainsFunc(p, unicode.IsControl):
		return "has a control character"
	case len(p) > maxPath:
		return "is longer than 4095 bytes"
	case slices.ContainsFunc(strings.Split(p, "/"), func(s string) bool { return len(s) > maxPart }):
		return "has a part longer than 255 bytes"
	}
	return ""
}

// nested reports whether two clean paths are equal or one is inside the other.
func nested(a, b string) bool { return inside(a, b) || inside(b, a) }

func inside(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
