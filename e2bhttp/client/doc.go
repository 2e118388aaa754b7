// Package client is a Go client of the volume API.
//
//	c, err := client.New(client.Config{URL: "http://localhost:3000", APIKey: os.Getenv("E2B_API_KEY")})
//	v, err := c.Create(ctx, wire.NewVolume{Name: "workspace"})
//	for v, err := range c.List(ctx, client.ListOptions{}) { ... }
//	if errors.Is(err, client.ErrNotFound) { ... }
//
// Every call may be repeated, and is, when a server answers 429 or 503 or does not answer: each creation carries an
// idempotency key of its own, so that a repetition whose first try took effect returns what that made. Waits honour
// Retry-After. An error of the server is an *Error that answers errors.Is for its class.
package client
