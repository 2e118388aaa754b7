package e2bhttp

import (
	_ "embed" // for the document
	"net/http"
	"slices"
)

//go:embed openapi.json
var document []byte

// OpenAPI returns the OpenAPI 3.1 document of the API. It is served at /openapi.json, without credentials.
func OpenAPI() []byte { return slices.Clone(document) }

func (c *call) document() error {
	c.route = "/" + documentPath
	const allow = "GET, HEAD, OPTIONS"
	switch c.r.Method {
	case http.MethodOptions:
		return c.options(allow)
	case http.MethodGet, http.MethodHead:
		c.w.Header().Set("Content-Type", "application/json")
		_, _ = c.w.Write(document) // a client that has gone needs no answer
		return nil
	}
	return c.notAllowed(allow)
}
