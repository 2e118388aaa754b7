package k8sadapter_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/k8sadapter"
	"github.com/sandvol/sandvol/volume"
)

// What is accepted says the same when it is written and read again, and what is refused is not quoted.
func FuzzVolumeConfig(f *testing.F) {
	for _, seed := range []string{`[]`, `null`, `[{"pvName":"a","mountPath":"/a"}]`, `[{"pvName":"a","mountPath":"/a"}`,
		`[{"pvName":"a","mountPath":"/a","subPath":"b","readOnly":true,"attributes":{"k":"v"},"mountID":"m"}]`,
		`[{"pvName":"\u0061","mountPath":"/\n"}]`, `[{"pvName":1}]`, `[[[[`, "[{\"pvName\":\"\xff\"}]", `[{}] x`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		mounts, err := k8sadapter.ParseVolumeConfig(text)
		if err != nil {
			if !errors.Is(err, volume.ErrInvalid) || len(text) > 40 && strings.Contains(err.Error(), text) {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		configs := []k8sadapter.MountConfig{}
		for i, m := range mounts {
			c := k8sadapter.MountConfig{MountID: m.MountID, PVName: m.Refs[0].Ref, MountPath: m.Path, SubPath: m.SubPath,
				Attributes: m.Attributes}
			if m.ReadOnly != nil {
				c.ReadOnly = *m.ReadOnly
			}
			configs = append(configs, c)
			// Written, an absent member and its zero value are the same.
			mounts[i].ReadOnly = nil
			if len(m.Attributes) == 0 {
				mounts[i].Attributes = nil
			}
		}
		written, err := json.Marshal(configs)
		must(t, err)
		again, err := k8sadapter.ParseVolumeConfig(string(written))
		must(t, err)
		for i := range again {
			again[i].ReadOnly = nil
		}
		if d := cmp.Diff(mounts, again); d != "" && len(mounts) > 0 {
			t.Fatalf("%q read again:\n%s", text, d)
		}
	})
}
