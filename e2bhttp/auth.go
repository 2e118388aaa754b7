package e2bhttp

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"

	"github.com/sandvol/sandvol/volume"
)

// Authenticator says which tenant a request is from. ErrForbidden is answered 403, volume.ErrUnavailable 503, and any other
// error 401; its text goes to the log alone. A request without a tenant is never served.
type Authenticator func(*http.Request) (tenant string, err error)

// apiKeyHeader is what E2B's SDKs and command send.
const apiKeyHeader = "X-API-Key"

// APIKeys authenticates by the header X-API-Key, given the tenant of each key. How long it takes does not depend on how much
// of a key is right. Some versions of E2B's SDK send only keys of the form e2b_ and hexadecimal digits; any form is accepted
// here.
func APIKeys(tenants map[string]string) (Authenticator, error) {
	// Digests under a random key: the comparison is of equal lengths, and tells nothing about the keys themselves.
	secret := []byte(rand.Text())
	known := make([]apiKey, 0, len(tenants))
	for key, tenant := range tenants {
		if key == "" || tenant == "" {
			return nil, fmt.Errorf("%w: api keys: key and tenant must not be empty", volume.ErrInvalid)
		}
		known = append(known, apiKey{digest: digest(secret, key), tenant: tenant})
	}
	return func(r *http.Request) (string, error) {
		// Two different headers could be judged by one of us and used by another.
		given := r.Header.Values(apiKeyHeader)
		if len(given) != 1 {
			return "", fmt.Errorf("%w: %d %s headers, 1 wanted", ErrUnauthenticated, len(given), apiKeyHeader)
		}
		return findKey(known, digest(secret, given[0]))
	}, nil
}

type apiKey struct {
	digest []byte
	tenant string
}

// findKey compares with every key, whichever matches.
func findKey(known []apiKey, given []byte) (tenant string, err error) {
	for _, k := range known {
		if subtle.ConstantTimeCompare(k.digest, given) == 1 {
			tenant = k.tenant
		}
	}
	if tenant == "" {
		return "", fmt.Errorf("%w: unknown key", ErrUnauthenticated)
	}
	return tenant, nil
}

func digest(secret []byte, key string) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(key))
	return mac.Sum(nil)
}

type tenantKey struct{}

// TenantFrom returns the tenant of a request that has passed Handler.Authenticate or Handler.Mounts.
func TenantFrom(ctx context.Context) string {
	tenant, _ := ctx.Value(tenantKey{}).(string)
	return tenant
}
