package e2bhttp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/mount"
)

// MetadataMounts is the metadata key under which OpenKruise's guide passes mounts, as JSON in a string.
const MetadataMounts = "e2b.agents.kruise.io/csi-volume-config"

// MountRules are a host's choices about the mounts that a request may ask for. The zero value allows what every host can do.
type MountRules struct {
	// Metadata also reads mounts from the metadata key MetadataMounts.
	Metadata bool
	// SubPaths lets an entry mount a directory of its volume. Without it, asking for one is refused: mounting the whole
	// volume instead would show the wrong files.
	SubPaths bool
	// Reserved are guest paths at and below which nothing may be mounted, beside /proc, /sys, /dev and /run.
	Reserved []string
	// Max is how many mounts a request may have; 0 is mount.DefaultMaxDrives.
	Max int
}

// MountEntry is one mount as a request asks for it. Its volume is not looked up yet.
type MountEntry struct {
	// Where names the entry for messages, such as volumeMounts[0].
	Where string
	// Refs are the names and ids by which the entry calls its volume; all must be of one volume.
	Refs []MountRef
	// Path is where the sandbox is to see the volume.
	Path string
	// ReadOnly is nil if the request does not say.
	ReadOnly *bool
	// Mode is the mode that the volume must have, or empty.
	Mode string
	// SubPath is a directory of the volume, or empty for all of it.
	SubPath string

	fault *mountFault
}

// Fault returns what is wrong with the entry as it was read, nil if nothing is. It is volume.ErrInvalid and ErrMounts, and does
// not say Where. MountRules.Resolve reports it; a host that turns entries into mounts of its own must do so too, or it would
// mount something that was not asked for.
func (e MountEntry) Fault() error { return e.fault.asError() }

// MountRef is an id or a name of a volume.
type MountRef struct {
	Ref string
	// ID says that Ref is an id and not a name.
	ID bool
}

// mountFault is what is wrong with one entry.
type mountFault struct {
	status  int
	code    string
	message string
}

func badMount(code, format string, args ...any) *mountFault {
	return &mountFault{status: http.StatusBadRequest, code: code, message: fmt.Sprintf(format, args...)}
}

// Decode reads the mounts that the body of a sandbox request asks for, in every form that clients of E2B and its kin send:
//
//	"volumeMounts":  [{"name": "data", "path": "/mnt/data"}]               what E2B's SDKs send
//	"volumeMounts":  {"/mnt/data": "data"}                                 by path; an id or a name
//	"volumeMounts":  {"/mnt/data": {"name": "data", "volumeID": "..."}}    by path; a serialised SDK object
//	"volume_mounts": [{"volumeID": "...", "mountPath": "/data", "readOnly": true}]
//	"metadata":      {"e2b.agents.kruise.io/csi-volume-config": "[{\"pvName\": ...}]"}    only if the rules say so
//
// Absent, null, [] and {} are no mounts. Members of the body that are not about mounts are not looked at. An error is
// volume.ErrInvalid and ErrMounts; what is wrong with an entry is kept in it and reported, with everything else, by Resolve.
func (r MountRules) Decode(body []byte) ([]MountEntry, error) {
	top, err := scan(body)
	if err != nil {
		return nil, err
	}
	camel, err := decodeMounts("volumeMounts", top["volumeMounts"])
	if err != nil {
		return nil, err
	}
	snake, err := decodeMounts("volume_mounts", top["volume_mounts"])
	if err != nil {
		return nil, err
	}
	if len(camel) > 0 && len(snake) > 0 {
		return nil, invalidMounts("volumeMounts and volume_mounts: only one of them may be given")
	}
	entries := append(camel, snake...)
	if r.Metadata {
		more, err := decodeMetadata(top["metadata"])
		if err != nil {
			return nil, err
		}
		entries = merge(entries, more)
	}
	if limit := r.max(); len(entries) > limit {
		return nil, invalidMounts("%d mounts, at most %d allowed", len(entries), limit)
	}
	return entries, nil
}

func (r MountRules) max() int {
	if r.Max == 0 {
		return mount.DefaultMaxDrives
	}
	return r.Max
}

// invalidMounts is an error about a request as a whole.
func invalidMounts(format string, args ...any) error {
	return &MountsError{faults: []mountFault{*badMount("", format, args...)}}
}

// scan returns the members of a body that have to do with mounts. What the host does with the others is its own affair, so
// they are held to no rule but that the body can be read.
func scan(body []byte) (map[string]jsontext.Value, error) {
	d := jsontext.NewDecoder(bytes.NewReader(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	top := map[string]jsontext.Value{}
	first, err := d.ReadToken()
	if err != nil || first.Kind() != '{' {
		return nil, invalidMounts("the body must be a JSON object")
	}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, invalidMounts("the body %s", jsonFault(err))
		}
		key := name.String()
		switch key {
		case "volumeMounts", "volume_mounts", "metadata":
		default:
			if err := d.SkipValue(); err != nil {
				return nil, invalidMounts("the body %s", jsonFault(err))
			}
			continue
		}
		if _, twice := top[key]; twice {
			return nil, invalidMounts("%s is there twice", key)
		}
		value, err := d.ReadValue()
		if err != nil {
			return nil, invalidMounts("the body %s", jsonFault(err))
		}
		top[key] = value.Clone()
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, invalidMounts("the body %s", jsonFault(err))
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, invalidMounts("the body has something behind the JSON object")
	}
	return top, nil
}

// decodeMounts looks at the first character: E2B's array and the map by path are both called volumeMounts.
func decodeMounts(where string, v jsontext.Value) ([]MountEntry, error) {
	if v == nil {
		return nil, nil
	}
	switch v.Kind() {
	case 'n':
		return nil, nil
	case '[':
		return decodeArray(where, v)
	case '{':
		return decodeMap(where, v)
	}
	return nil, invalidMounts("%s must be an array or an object", where)
}

func decodeArray(where string, v jsontext.Value) ([]MountEntry, error) {
	var items []jsontext.Value
	if err := json.Unmarshal(v, &items); err != nil {
		return nil, invalidMounts("%s %s", where, jsonFault(err))
	}
	entries := make([]MountEntry, 0, len(items))
	for i, item := range items {
		entries = append(entries, decodeEntry(fmt.Sprintf("%s[%d]", where, i), item))
	}
	return entries, nil
}

// decodeMap walks the tokens: of two members of one name a Go map would keep one, and a volume would not be mounted.
func decodeMap(where string, v jsontext.Value) ([]MountEntry, error) {
	d := jsontext.NewDecoder(bytes.NewReader(v))
	if _, err := d.ReadToken(); err != nil {
		return nil, invalidMounts("%s %s", where, jsonFault(err))
	}
	var entries []MountEntry
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, invalidMounts("%s %s", where, jsonFault(err))
		}
		path := name.String()
		value, err := d.ReadValue()
		if err != nil {
			return nil, invalidMounts("%s %s", where, jsonFault(err))
		}
		entries = append(entries, decodeByPath(fmt.Sprintf("%s[%q]", where, shorten(path)), path, value))
	}
	return entries, nil
}

func decodeByPath(where, path string, value jsontext.Value) MountEntry {
	if value.Kind() != '"' {
		e := decodeEntry(where, value)
		if e.Path != "" && e.Path != path && e.fault == nil {
			e.fault = badMount(wire.InvalidPath, "two paths")
		}
		e.Path = path
		return e
	}
	var ref string
	e := MountEntry{Where: where, Path: path}
	if json.Unmarshal(value, &ref) != nil || ref == "" {
		e.fault = badMount(wire.VolumeNotFound, "names no volume")
	}
	e.Refs = []MountRef{{Ref: ref}}
	return e
}

// decodeMetadata reads the mounts in a metadata value.
func decodeMetadata(v jsontext.Value) ([]MountEntry, error) {
	if v == nil || v.Kind() == 'n' {
		return nil, nil
	}
	var metadata map[string]jsontext.Value
	if err := json.Unmarshal(v, &metadata); err != nil {
		return nil, invalidMounts("metadata %s", jsonFault(err))
	}
	value, ok := metadata[MetadataMounts]
	if !ok || value.Kind() == 'n' {
		return nil, nil
	}
	where := "metadata " + MetadataMounts
	var text string
	if json.Unmarshal(value, &text) != nil {
		return nil, invalidMounts("%s must be a string that holds a JSON array", where)
	}
	list := jsontext.Value(text)
	if list.Kind() != '[' {
		return nil, invalidMounts("%s must hold a JSON array", where)
	}
	return decodeArray(where, list)
}
