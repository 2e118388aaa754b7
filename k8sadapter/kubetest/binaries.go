package kubetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Env names the directory of the binaries, or says "build": then they are built, or waited for while somebody else builds
// them. Without it those that were built before are used.
const Env = "SANDVOL_KUBE"

// ErrNotBuilt: the binaries were never built here, and Env does not ask for it.
var ErrNotBuilt = errors.New("kubetest: kube-apiserver and etcd are not built: run internal/tools/kube/build, once")

// Binaries returns the directory of etcd and kube-apiserver, as Env says. build is the script that builds them.
func Binaries(build string) (string, error) {
	switch dir := os.Getenv(Env); dir {
	case "":
		out, err := exec.Command(build, "-cached").Output()
		if err != nil {
			return "", ErrNotBuilt
		}
		return strings.TrimSpace(string(out)), nil
	case "build":
		out, err := exec.Command(build).Output()
		if err != nil {
			return "", fmt.Errorf("kubetest: %s: %w", build, err)
		}
		return strings.TrimSpace(string(out)), nil
	default:
		return dir, nil
	}
}
