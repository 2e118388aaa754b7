package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// config is what this tool needs of the OverlayBD project's image configuration.
type config struct {
	Lowers []struct {
		File, Dir, Digest     string
		TargetFile, GzipIndex string
	}
	Upper struct{ Data, Index string }
}

func readConfig(path string) (all []layerArg, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var cfg config
	if err := json.Unmarshal(b, &cfg); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for i, l := range cfg.Lowers {
		file := l.File
		if file == "" {
			file = firstFile(l.Dir, "overlaybd.commit", ".commit", "overlaybd.sealed")
		}
		switch {
		case file == "":
			return nil, fmt.Errorf("%s: layer %d (%s) is on no local disk", path, i, l.Digest)
		case l.TargetFile != "":
			all = append(all, turboLayer(file, l.TargetFile, l.GzipIndex))
		default:
			all = append(all, fileLayer(file))
		}
	}
	if cfg.Upper.Data != "" && cfg.Upper.Index != "" {
		all = append(all, upperLayer(cfg.Upper.Data, cfg.Upper.Index))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no layer", path)
	}
	return all, nil
}

// firstFile returns the first of some files in dir that exists.
func firstFile(dir string, names ...string) string {
	if dir == "" {
		return ""
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return filepath.Join(dir, name)
		}
	}
	return ""
}
