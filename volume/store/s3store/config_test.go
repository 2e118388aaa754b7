package s3store_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/s3store"
)

func TestNewNamesTheFieldThatCannotBeUsed(t *testing.T) {
	for _, c := range []struct {
		field  string
		change func(*s3store.Config)
	}{
		{"Bucket", func(c *s3store.Config) { c.Bucket = "" }},
		{"Bucket", func(c *s3store.Config) { c.Bucket = "fast--euw1-az1--x-s3" }},
		{"Prefix", func(c *s3store.Config) { c.Prefix = strings.Repeat("p/", 300) }},
		{"Endpoint", func(c *s3store.Config) { c.Endpoint = "s3.example.com" }},
		{"Endpoint", func(c *s3store.Config) { c.Endpoint = "ftp://s3.example.com" }},
		{"Endpoint", func(c *s3store.Config) { c.Endpoint = "https://" }},
		{"Endpoint", func(c *s3store.Config) { c.Endpoint = "https://user:" + secret + "@s3.example.com" }},
		{"Endpoint", func(c *s3store.Config) { c.Endpoint = "https://user:" + secret + "\x7f@s3.example.com" }},
		{"Endpoint", func(c *s3store.Config) { c.Endpoint = "https://s3.example.com/?X-Amz-Signature=1" }},
	} {
		cfg := newWire(t).config()
		c.change(&cfg)
		_, err := s3store.New(t.Context(), cfg)
		var ce *s3store.ConfigError
		if !errors.As(err, &ce) || ce.Field != c.field || ce.Reason == "" {
			t.Errorf("%v, want a *ConfigError about %s", err, c.field)
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%v tells a password", err)
		}
	}
	cfg := newWire(t).config()
	for _, prefix := range []string{"no-slash", "/", "a//", "../"} {
		cfg.Prefix = prefix
		_, err := s3store.New(t.Context(), cfg)
		wantIs(t, err, store.ErrInvalidKey)
	}
}

func TestRegionComesFromTheEnvironment(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
	w := newWire(t)
	cfg := w.config()
	cfg.Region = ""
	_, err := s3store.New(t.Context(), cfg, s3store.WithTransport(w))
	var ce *s3store.ConfigError
	if !errors.As(err, &ce) || ce.Field != "Region" {
		t.Errorf("%v, want a *ConfigError about Region", err)
	}
	t.Setenv("AWS_REGION", "eu-central-1")
	_, err = s3store.New(t.Context(), cfg, s3store.WithTransport(w))
	must(t, err)
}

func TestKeyMustFitBehindThePrefix(t *testing.T) {
	w := newWire(t)
	cfg := w.config()
	cfg.Prefix = strings.Repeat("p", 200) + "/"
	s, err := s3store.New(t.Context(), cfg, s3store.WithoutProbe(), s3store.WithTransport(w))
	must(t, err)
	key := strings.Repeat(strings.Repeat("k", 200)+"/", 4) + "k"
	must(t, s.PutIfAbsent(t.Context(), key, nil))
	var ke *store.KeyError
	if err := s.PutIfAbsent(t.Context(), key+strings.Repeat("k", 100), nil); !errors.As(err, &ke) {
		t.Errorf("%v, want a *KeyError", err)
	}
}

// a configuration can be printed and logged.
func TestConfigShowsNoCredentials(t *testing.T) {
	cfg := s3store.Config{
		Bucket: "volumes", Prefix: "prod/", Endpoint: "https://user:" + secret + "@s3.example.com",
		Credentials: credentials.NewStaticCredentialsProvider(accessKey, secret, token),
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("open", "config", cfg, "pointer", &cfg)
	slog.New(slog.NewTextHandler(&log, nil)).Info("open", "config", cfg)
	fmt.Fprintf(&log, "%v %+v %#v %s %q %v %#v", cfg, cfg, cfg, cfg, cfg, &cfg, []any{cfg})
	cfg.Endpoint = ""
	out, err := json.Marshal(cfg)
	must(t, err)
	log.Write(out)
	wantNoSecrets(t, log.String())
	if !strings.Contains(log.String(), "s3://volumes/prod/") {
		t.Errorf("%s does not name the bucket", log.String())
	}
}
