package k8sadapter

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sandvol/sandvol/volume"
)

// MountConfig is one mount as OpenKruise's pipeline reads it: an entry of a claim's dynamicVolumesMount, and of the array in
// the annotation VolumeConfig. The names of its members are OpenKruise's.
type MountConfig struct {
	MountID    string            `json:"mountID,omitzero"`
	PVName     string            `json:"pvName"`
	MountPath  string            `json:"mountPath"`
	SubPath    string            `json:"subPath,omitzero"`
	ReadOnly   bool              `json:"readOnly,omitzero"`
	Attributes map[string]string `json:"attributes,omitempty"`
}

// String leaves the attributes out: a driver may take credentials there.
func (c MountConfig) String() string {
	return fmt.Sprintf("{pvName:%q mountPath:%q subPath:%q readOnly:%t}", c.PVName, c.MountPath, c.SubPath, c.ReadOnly)
}

// Ref is a reference to a volume. It has the form of e2bhttp.MountRef, to which it converts.
type Ref struct {
	Ref string
	// ID says that Ref is an id, the name of a PersistentVolume, and not a volume's name.
	ID bool
}

// Mount is one mount as a request asks for it, in whatever form.
type Mount struct {
	// Where names the mount for messages, such as volumeMounts[0].
	Where string
	// Refs are the names and ids by which the request calls the volume; all must be of one volume.
	Refs    []Ref
	Path    string
	SubPath string
	// ReadOnly is nil if the request does not say.
	ReadOnly *bool
	// Mode is the mode that the volume must have, or empty: see volume.Volume. It is never turned into another.
	Mode       string
	Attributes map[string]string
	MountID    string
	// Fault is what was wrong with the mount when the request was read, nil if nothing was. Resolve reports it with all else
	// that is wrong.
	Fault error
}

func (m Mount) equal(o Mount) bool {
	return m.Fault == nil && o.Fault == nil && slices.Equal(m.Refs, o.Refs) && m.Mode == o.Mode && m.Path == o.Path && m.SubPath == o.SubPath && m.MountID == o.MountID &&
		(m.ReadOnly == nil) == (o.ReadOnly == nil) && (m.ReadOnly == nil || *m.ReadOnly == *o.ReadOnly) &&
		maps.Equal(m.Attributes, o.Attributes)
}

// Merge joins the mounts of several sources of one request. An entry that says the very same as another is one mount; two
// that only partly agree are left for Resolve to refuse. No source silently wins.
func Merge(sources ...[]Mount) []Mount {
	var all []Mount
	for _, source := range sources {
		before := len(all)
		for _, m := range source {
			// Twice in one source is a mistake, and kept.
			if !slices.ContainsFunc(all[:before], m.equal) {
				all = append(all, m)
			}
		}
	}
	return all
}

// entry is MountConfig as it is read: strictly, and with what was left out.
type entry struct {
	MountID    string            `json:"mountID"`
	PVName     string            `json:"pvName"`
	MountPath  string            `json:"mountPath"`
	SubPath    string            `json:"subPath"`
	ReadOnly   *bool             `json:"readOnly"`
	Attributes map[string]string `json:"attributes"`
}

// ParseVolumeConfig reads the JSON array in the metadata or annotation VolumeConfig. Members that it does not know, doubled
// ones and anything behind the array are refused: what is not understood would silently not be mounted. An error never
// quotes the text, which can hold credentials.
func ParseVolumeConfig(text string) ([]Mount, error) {
	return parseEntries(VolumeConfig, []byte(text))
}

// ParseClaim reads the mounts in a SandboxClaim's spec.dynamicVolumesMount.
func ParseClaim(claim *unstructured.Unstructured) ([]Mount, error) {
	const where = "spec.dynamicVolumesMount"
	if claim == nil {
		return nil, fmt.Errorf("%w: claim: is missing", volume.ErrInvalid)
	}
	mounts, found, err := unstructured.NestedFieldNoCopy(claim.Object, "spec", "dynamicVolumesMount")
	if err != nil {
		return nil, fmt.Errorf("%w: %s: spec is no object", volume.ErrInvalid, where)
	}
	if !found {
		return nil, nil
	}
	text, err := json.Marshal(mounts)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: not a list", volume.ErrInvalid, where)
	}
	return parseEntries(where, text)
}

// ParseMetadata reads the mounts in the metadata of an E2B request: those under VolumeConfig, and the one under the three
// legacy keys. It does not change the metadata; a host passes none of these keys on.
func ParseMetadata(metadata map[string]string) ([]Mount, error) {
	var mounts []Mount
	var err error
	if text, ok := metadata[VolumeConfig]; ok {
		mounts, err = ParseVolumeConfig(text)
	}
	legacy, legacyErr := parseLegacy(metadata)
	if err := errors.Join(err, legacyErr); err != nil {
		return nil, err
	}
	return Merge(mounts, legacy), nil
}

func parseLegacy(metadata map[string]string) ([]Mount, error) {
	name, path := metadata[LegacyName], metadata[LegacyPath]
	subPath, hasSubPath := metadata[LegacySubPath]
	if (name == "") != (path == "") || hasSubPath && name == "" {
		return nil, fmt.Errorf("%w: metadata %s and %s: both or none must be given", volume.ErrInvalid, LegacyName, LegacyPath)
	}
	if name == "" {
		return nil, nil
	}
	return []Mount{{Where: "metadata " + LegacyName, Refs: []Ref{{Ref: name, ID: true}}, Path: path, SubPath: subPath}}, nil
}

// entryForm is what an entry must be. What it is instead is not quoted.
const entryForm = "must be an object with pvName, mountPath and, if wanted, subPath, readOnly, attributes, mountID, and nothing else"

// parseEntries reads the entries, and says of all that are wrong what is.
func parseEntries(where string, text []byte) (mounts []Mount, faults error) {
	var entries []jsontext.Value
	if err := json.Unmarshal(text, &entries); err != nil {
		return nil, fmt.Errorf("%w: %s: must be a JSON array of objects, each with pvName and mountPath", volume.ErrInvalid, where)
	}
	for i, text := range entries {
		m, err := parseEntry(text)
		m.Where = fmt.Sprintf("%s[%d]", where, i)
		if err != nil {
			faults = errors.Join(faults, fmt.Errorf("%w: %s: %w", volume.ErrInvalid, m.Where, err))
		}
		mounts = append(mounts, m)
	}
	if faults != nil {
		return nil, faults
	}
	return mounts, nil
}

func parseEntry(text jsontext.Value) (Mount, error) {
	var e entry
	switch err := json.Unmarshal(text, &e, json.RejectUnknownMembers(true)); {
	case err != nil, text.Kind() != '{':
		return Mount{}, errors.New(entryForm)
	case e.PVName == "":
		return Mount{}, errors.New("pvName is missing")
	case e.MountPath == "":
		return Mount{}, errors.New("mountPath is missing")
	}
	return Mount{Refs: []Ref{{Ref: e.PVName, ID: true}}, Path: e.MountPath, SubPath: e.SubPath, ReadOnly: e.ReadOnly,
		Attributes: e.Attributes, MountID: e.MountID}, nil
}

// encode is the annotation's text: the same for the same mounts, whatever the order of a map.
func encode(mounts []MountConfig) (string, error) {
	if len(mounts) == 0 {
		return "", nil
	}
	text, err := json.Marshal(mounts, json.Deterministic(true))
	return string(text), err
}
