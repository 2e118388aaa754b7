package e2bhttp

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// The operations, as metrics name them. Register is a creation: over PersistentVolumes it registers one that exists.
const (
	OpRegister       = "register"
	OpList           = "list"
	OpGet            = "get"
	OpDelete         = "delete"
	OpFork           = "fork"
	OpRestore        = "restore"
	OpSnapshot       = "snapshot"
	OpListSnapshots  = "list_snapshots"
	OpGetSnapshot    = "get_snapshot"
	OpDeleteSnapshot = "delete_snapshot"
	OpMount          = "mount"
)

// route is a path and what can be done there. "*" stands for an id.
type route struct {
	path    string
	methods []method
}

type method struct {
	name string
	op   string
	do   func(*call) error
}

var routes = []route{
	{"volumes", []method{{"GET", OpList, (*call).list}, {"POST", OpRegister, (*call).create}}},
	{"volumes/*", []method{{"GET", OpGet, (*call).get}, {"DELETE", OpDelete, (*call).delete}}},
	{"volumes/*/fork", []method{{"POST", OpFork, (*call).fork}}},
	{"volumes/*/restore", []method{{"POST", OpRestore, (*call).restore}}},
	{"volumes/*/snapshots", []method{
		{"GET", OpListSnapshots, (*call).volumeSnapshots}, {"POST", OpSnapshot, (*call).snapshot}}},
	{"volume-snapshots", []method{{"GET", OpListSnapshots, (*call).snapshots}}},
	{"volume-snapshots/*", []method{
		{"GET", OpGetSnapshot, (*call).getSnapshot}, {"DELETE", OpDeleteSnapshot, (*call).deleteSnapshot}}},
}

// The paths that need no tenant.
const (
	contentRoot  = "volumecontent"
	documentPath = "openapi.json"
)

// split cuts an escaped path into its segments. Each is unescaped by itself: an escaped slash belongs to an id, and no id is
// ever part of a path that is cleaned. Empty segments, from doubled and trailing slashes, do not count.
func split(escaped string) (segments []string, ok bool) {
	for s := range strings.SplitSeq(escaped, "/") {
		if s == "" {
			continue
		}
		plain, err := url.PathUnescape(s)
		if err != nil {
			return nil, false
		}
		segments = append(segments, plain)
	}
	return segments, true
}

// within returns what is left of a path below the prefixes under which a handler serves, the shortest match first.
func within(segments []string, prefixes [][]string) (rests [][]string) {
	for _, p := range prefixes {
		if len(segments) >= len(p) && slices.Equal(segments[:len(p)], p) {
			rests = append(rests, segments[len(p):])
		}
	}
	return rests
}

// match finds the route of a path, and the id in it.
func match(segments []string) (rt route, id string, ok bool) {
	for _, rt := range routes {
		if id, ok := rt.match(segments); ok {
			return rt, id, true
		}
	}
	return route{}, "", false
}

func (rt route) match(segments []string) (id string, ok bool) {
	rest := rt.path
	for _, s := range segments {
		var p string
		if p, rest, _ = strings.Cut(rest, "/"); p == "*" {
			id = s
		} else if p != s {
			return "", false
		}
	}
	return id, rest == ""
}

// method returns what a request's method does here. HEAD is GET whose body net/http leaves out.
func (rt route) method(name string) (method, bool) {
	if name == http.MethodHead {
		name = http.MethodGet
	}
	i := slices.IndexFunc(rt.methods, func(m method) bool { return m.name == name })
	if i < 0 {
		return method{}, false
	}
	return rt.methods[i], true
}

// allow is the value of the Allow header.
func (rt route) allow() string {
	names := []string{http.MethodOptions}
	for _, m := range rt.methods {
		names = append(names, m.name)
		if m.name == http.MethodGet {
			names = append(names, http.MethodHead)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// maxID is the longest id or name that is looked up: a Kubernetes object name has up to 253 characters.
const maxID = 253

// wellFormed reports whether an id or name may be passed on and shown. Ids are opaque, but none has a slash, a space or a
// control character.
func wellFormed(id string) bool {
	if id == "" || len(id) > maxID || id == "." || id == ".." {
		return false
	}
	return !strings.ContainsFunc(id, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || r == '/' || r == '\\'
	})
}
