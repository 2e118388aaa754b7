package k8sadapter_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/k8sadapter"
	"github.com/sandvol/sandvol/volume"
)

func flag(b bool) *bool { return &b }

func byPV(pv string) []k8sadapter.Ref { return []k8sadapter.Ref{{Ref: pv, ID: true}} }

// the guide's metadata, with sub-path and readOnly optional.
func TestVolumeConfigIsRead(t *testing.T) {
	got, err := k8sadapter.ParseVolumeConfig(`[{"pvName": "shared-pv-1", "mountPath": "/data1"},
		{"pvName": "shared-pv-2", "mountPath": "/data2", "subPath": "sub/dir", "readOnly": true, "attributes": {"a": "b"}}]`)
	must(t, err)
	want := []k8sadapter.Mount{
		{Where: k8sadapter.VolumeConfig + "[0]", Refs: byPV("shared-pv-1"), Path: "/data1"},
		{Where: k8sadapter.VolumeConfig + "[1]", Refs: byPV("shared-pv-2"), Path: "/data2", SubPath: "sub/dir",
			ReadOnly: flag(true), Attributes: map[string]string{"a": "b"}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, none := range []string{"[]", "null"} {
		if got, err := k8sadapter.ParseVolumeConfig(none); err != nil || len(got) != 0 {
			t.Errorf("%s: %v, %v", none, got, err)
		}
	}
}

// pvName and mountPath are needed. What is not understood is refused, and nothing of it is quoted.
func TestVolumeConfigIsReadStrictly(t *testing.T) {
	for name, text := range map[string]string{
		"A-157 pvName":    `[{"mountPath": "/hunter2"}]`,
		"A-158 mountPath": `[{"pvName": "hunter2"}]`,
		"empty pvName":    `[{"pvName": "", "mountPath": "/hunter2"}]`,
		"unknown member":  `[{"pvName": "hunter2", "mountPath": "/d", "hunter2": 1}]`,
		"other case":      `[{"PVName": "hunter2", "mountPath": "/d"}]`,
		"doubled member":  `[{"pvName": "hunter2", "pvName": "x", "mountPath": "/d"}]`,
		"trailing data":   `[] hunter2`,
		"object":          `{"hunter2": 1}`,
		"string":          `"hunter2"`,
		"null entry":      `[null]`,
		"readOnly text":   `[{"pvName": "hunter2", "mountPath": "/d", "readOnly": "yes"}]`,
		"empty":           ``,
	} {
		_, err := k8sadapter.ParseVolumeConfig(text)
		is(t, err, volume.ErrInvalid)
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v quotes the text", name, err)
		}
	}
}

// Of several entries that are wrong, each is named with what is wrong with it.
func TestAllFaultyEntriesAreNamed(t *testing.T) {
	_, err := k8sadapter.ParseMetadata(map[string]string{k8sadapter.LegacyName: "pv",
		k8sadapter.VolumeConfig: `[{"pvName":"a"},{"pvName":"b","mountPath":"/b"},{"mountPath":"/c"},{"x":1},7]`})
	is(t, err, volume.ErrInvalid)
	for _, want := range []string{"[0]: mountPath is missing", "[2]: pvName is missing", "[3]: must be an object with",
		"[4]: must be an object with", k8sadapter.LegacyPath} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "[1]") {
		t.Errorf("error %v names one that is right", err)
	}
}

// a claim lists the same fields, and means the same by them.
func TestAClaimsMountsAreReadAsTheMetadata(t *testing.T) {
	claim := object("SandboxClaim", "ns", "c", map[string]any{"dynamicVolumesMount": []any{
		map[string]any{"pvName": "a", "mountPath": "/a", "subPath": "s", "readOnly": true},
		map[string]any{"pvName": "b", "mountPath": "/b"},
	}})
	fromClaim, err := k8sadapter.ParseClaim(claim)
	must(t, err)
	fromText, err := k8sadapter.ParseVolumeConfig(
		`[{"pvName":"a","mountPath":"/a","subPath":"s","readOnly":true},{"pvName":"b","mountPath":"/b"}]`)
	must(t, err)
	for i := range fromText {
		fromText[i].Where, fromClaim[i].Where = "", ""
	}
	if d := cmp.Diff(fromText, fromClaim); d != "" {
		t.Error(d)
	}
	none, err := k8sadapter.ParseClaim(object("SandboxClaim", "ns", "c", map[string]any{}))
	if err != nil || none != nil {
		t.Errorf("no mounts: %v, %v", none, err)
	}
	_, err = k8sadapter.ParseClaim(object("SandboxClaim", "ns", "c", map[string]any{"dynamicVolumesMount": "x"}))
	is(t, err, volume.ErrInvalid)
}

func TestTheLegacyMetadataIsOneMount(t *testing.T) {
	got, err := k8sadapter.ParseMetadata(map[string]string{"other": "x", k8sadapter.LegacyName: "pv",
		k8sadapter.LegacyPath: "/d", k8sadapter.LegacySubPath: "s", k8sadapter.VolumeConfig: `[{"pvName":"q","mountPath":"/q"}]`})
	must(t, err)
	if len(got) != 2 || got[1].Path != "/d" || got[1].SubPath != "s" || got[1].Refs[0].Ref != "pv" {
		t.Errorf("mounts %+v", got)
	}
	for _, broken := range []map[string]string{{k8sadapter.LegacyName: "pv"}, {k8sadapter.LegacyPath: "/d"},
		{k8sadapter.LegacySubPath: "s"}, {k8sadapter.VolumeConfig: "x"}} {
		_, err := k8sadapter.ParseMetadata(broken)
		is(t, err, volume.ErrInvalid)
	}
}

// two sources are merged; none wins.
func TestMergeKeepsWhatDiffers(t *testing.T) {
	a := k8sadapter.Mount{Refs: byPV("a"), Path: "/a"}
	b := k8sadapter.Mount{Refs: byPV("b"), Path: "/b", ReadOnly: flag(true)}
	differs := b
	differs.ReadOnly = flag(false)
	if d := cmp.Diff([]k8sadapter.Mount{a, b}, k8sadapter.Merge([]k8sadapter.Mount{a}, []k8sadapter.Mount{a, b})); d != "" {
		t.Error(d)
	}
	if got := k8sadapter.Merge([]k8sadapter.Mount{b}, []k8sadapter.Mount{differs}); len(got) != 2 {
		t.Errorf("merged %+v", got)
	}
	if got := k8sadapter.Merge([]k8sadapter.Mount{a, a}); len(got) != 2 {
		t.Errorf("a mount given twice in one source was dropped: %+v", got)
	}
}
