package e2bhttp_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// sdkVersions are the modules of sdktest/package.json, with the path to which each version posts creations.
var sdkVersions = []struct{ module, creates string }{
	{"e2b", "POST /v2/sandboxes"}, // 2.51.0
	{"e2b-v1", "POST /sandboxes"}, // 2.50.0
}

// E2B's own SDK, in the two versions that differ in
// their routes, sees volumes, mounts and errors as from E2B.
func TestStockSDK(t *testing.T) {
	modules := installSDKs(t)
	for _, v := range sdkVersions {
		t.Run(v.module, func(t *testing.T) {
			t.Parallel()
			s, url := newHost(t)
			dir := t.TempDir()
			copyFile(t, filepath.Join("sdktest", "sdk.mjs"), filepath.Join(dir, "sdk.mjs"))
			if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "node", "sdk.mjs", v.module)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "E2B_API_URL="+url, "E2B_VOLUME_API_URL="+url, "E2B_API_KEY="+redKey,
				"OTHER_KEY="+blueKey, "DOWN_KEY="+downKey)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if !s.saw(v.creates) {
				t.Errorf("the SDK never sent %s: the two versions no longer differ", v.creates)
			}
		})
	}
}

// installSDKs installs what sdktest/package-lock.json pins, once for each state of the lock file, and returns the directory
// of the modules.
func installSDKs(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			missing(t, "the E2B SDK needs "+tool+": "+err.Error())
		}
	}
	lock, err := os.ReadFile(filepath.Join("sdktest", "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	sum := sha256.Sum256(lock)
	dir := filepath.Join(cache, "sandvol", "sdktest-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return filepath.Join(dir, "node_modules")
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	// Beside its final place, so that a directory of that name is always whole.
	fresh, err := os.MkdirTemp(filepath.Dir(dir), "npm-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(fresh)
	for _, name := range []string{"package.json", "package-lock.json"} {
		copyFile(t, filepath.Join("sdktest", name), filepath.Join(fresh, name))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = fresh
	if out, err := cmd.CombinedOutput(); err != nil {
		missing(t, "npm ci: "+err.Error()+"\n"+string(out))
	}
	if err := os.Rename(fresh, dir); err != nil && !errors.Is(err, os.ErrExist) {
		if _, statErr := os.Stat(dir); statErr != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "node_modules")
}

// missing skips a test whose real part is not there, or fails where it must be.
func missing(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("SANDVOL_REQUIRE_REAL") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	body, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, body, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
