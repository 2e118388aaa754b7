package e2bhttp

import (
	"crypto/rand"
	"net/http"
	"regexp"
	"strings"
)

// requestIDHeader carries a request's id both ways.
const requestIDHeader = "X-Request-Id"

var goodRequestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// requestID is what the caller calls the request, if that can go to a log, or a fresh id.
func requestID(r *http.Request) string {
	if id := r.Header.Get(requestIDHeader); goodRequestID.MatchString(id) {
		return id
	}
	return rand.Text()
}

const redacted = "[redacted]"

// secrets are forms of credentials that an error's text may carry: keys of E2B's form, the user part of a URL or of an image
// reference, what follows a scheme in an Authorization header, and members and parameters whose name says it.
var secrets = []struct {
	form *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\b(?:sk_)?e2b_[0-9A-Za-z]+`), redacted},
	{regexp.MustCompile(`(^|[\s"'=(/])[^\s/@"']+:[^\s/@"']+@`), "${1}" + redacted + "@"},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]+`), "$1 " + redacted},
	{regexp.MustCompile(`(?i)(\b[a-z_-]*(?:token|password|passwd|secret|api[_-]?key)=)[^\s"&,;]+`), "${1}" + redacted},
	{regexp.MustCompile(`(?i)("[a-z_-]*(?:token|password|passwd|secret|api[_-]?key|auth)"\s*:\s*")[^"]+`), "${1}" + redacted},
}

// redact removes what looks like a credential.
func redact(text string) string {
	for _, s := range secrets {
		text = s.form.ReplaceAllString(text, s.with)
	}
	return text
}

// credentialHeaders are those that a caller may have put a credential in.
var credentialHeaders = []string{apiKeyHeader, "Authorization", "X-Admin-Token", "X-Access-Token", "X-Supabase-Token",
	"Cookie"}

// redactFor also removes the credentials that a request came with, whatever they look like: an error of a host's hook may
// quote them.
func redactFor(r *http.Request, text string) string {
	for _, name := range credentialHeaders {
		for _, value := range r.Header.Values(name) {
			for part := range strings.FieldsSeq(value) {
				// Short words, such as a scheme, would tear the text apart and are no credentials.
				if len(part) >= 8 {
					text = strings.ReplaceAll(text, part, redacted)
				}
			}
		}
	}
	return redact(text)
}
