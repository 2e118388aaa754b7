package s3store

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"

	"github.com/sandvol/sandvol/volume/store"
)

// Config says which bucket to use, and how to reach it. It prints and logs without its credentials.
type Config struct {
	// Bucket is the bucket's name. It must exist.
	Bucket string
	// Prefix is put before each key: empty, or segments as in a key, each followed by "/". Stores with different
	// prefixes of which none begins with the other share a bucket and know nothing of each other.
	Prefix string
	// Region is the bucket's region. Empty: what the environment says. Servers that know no regions mostly take
	// "us-east-1".
	Region string
	// Endpoint is the server's URL, such as "https://s3.example.com". Empty: that of AWS for the region.
	Endpoint string
	// PathStyle puts the bucket into the URL's path, not into its host name. Most servers that are not AWS need it.
	PathStyle bool
	// Credentials is asked again whenever what it gave has expired or is refused as expired. Nil: the default chain of
	// the AWS SDK, which looks into the environment, the shared files, and the services of the machine.
	Credentials aws.CredentialsProvider `json:"-"`
}

// ConfigError says which field of a Config cannot be used.
type ConfigError struct {
	Field  string
	Value  string // without a password
	Reason string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("s3store: %s %q: %s", e.Field, e.Value, e.Reason)
}

// String names the place that the configuration stands for.
func (c Config) String() string {
	at := c.Endpoint
	if at == "" {
		at = "AWS"
	} else if u, err := url.Parse(at); err == nil {
		at = u.Redacted()
	} else {
		at = "an endpoint that is no URL"
	}
	return fmt.Sprintf("s3://%s/%s at %s, region %q", c.Bucket, c.Prefix, at, c.Region)
}

// Format prints String for every verb: a provider of fixed credentials would otherwise print them.
func (c Config) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// LogValue is String, for the same reason.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

func (c Config) validate() error {
	switch {
	case c.Bucket == "":
		return &ConfigError{"Bucket", c.Bucket, "empty, must name a bucket"}
	case strings.HasSuffix(c.Bucket, "--x-s3"):
		return &ConfigError{"Bucket", c.Bucket, "a directory bucket, which does not list in byte order; use another kind"}
	}
	if err := store.ValidPrefix(c.Prefix); err != nil {
		return fmt.Errorf("s3store: Prefix: %w", err)
	}
	// A key of its own and a segment or two must find room after it.
	if limit := store.MaxKey / 2; len(c.Prefix) > limit {
		return &ConfigError{"Prefix", c.Prefix[:80], fmt.Sprintf("%d bytes, limit is %d", len(c.Prefix), limit)}
	}
	return validEndpoint(c.Endpoint)
}

func validEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		// Neither the value nor the error, which quotes it: there may be a password in it.
		return &ConfigError{"Endpoint", "", "not a URL"}
	}
	reason := ""
	switch {
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		reason = "must be http://host or https://host"
	case u.User != nil:
		reason = "has a user name in it; credentials belong in Credentials"
	case u.RawQuery != "" || u.Fragment != "":
		reason = "has a query or fragment"
	default:
		return nil
	}
	return &ConfigError{"Endpoint", u.Redacted(), reason}
}

// resolve fills in what the configuration leaves to the environment.
func (c Config) resolve(ctx context.Context) (Config, error) {
	if c.Credentials != nil && c.Region != "" {
		return c, nil // the environment is not asked at all
	}
	env, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithLogger(logging.Nop{}))
	if err != nil {
		return c, fmt.Errorf("s3store: environment: %w", err)
	}
	if c.Credentials == nil {
		c.Credentials = env.Credentials
	}
	if c.Region == "" {
		c.Region = env.Region
	}
	if c.Region == "" {
		const reason = "empty, and the environment names none; most servers that are not AWS take us-east-1"
		return c, &ConfigError{"Region", "", reason}
	}
	return c, nil
}
