package k8sadapter_test

import (
	"fmt"

	"github.com/sandvol/sandvol/k8sadapter"
)

func ExampleParseVolumeConfig() {
	mounts, err := k8sadapter.ParseVolumeConfig(`[{"pvName": "shared-pv-1", "mountPath": "/data1"},
		{"pvName": "shared-pv-2", "mountPath": "/data2", "subPath": "sub/dir", "readOnly": true}]`)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range mounts {
		fmt.Printf("%s at %s, directory %q\n", m.Refs[0].Ref, m.Path, m.SubPath)
	}
	// Output:
	// shared-pv-1 at /data1, directory ""
	// shared-pv-2 at /data2, directory "sub/dir"
}
