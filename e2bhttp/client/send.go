package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strconv"
	"time"

	"github.com/sandvol/sandvol/e2bhttp/wire"
)

// request is one call, which may be sent several times.
type request struct {
	method, path string
	body         any
	// next receives the token of the next page.
	next *string

	payload []byte
	key     string
}

// none is the answer of calls that return nothing.
type none struct{}

type keyKey struct{}

// WithIdempotencyKey makes the creations under a context use this key instead of a fresh one: a program that may have died
// and begins again finds what it made.
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyKey{}, key)
}

// send sends a request, again where that can help, and decodes the answer.
func send[T any](ctx context.Context, c *Client, r request) (out T, err error) {
	if r.body != nil {
		if r.payload, err = json.Marshal(r.body); err != nil {
			return out, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		r.key, _ = ctx.Value(keyKey{}).(string)
		if r.key == "" {
			r.key = rand.Text()
		}
	}
	inDoubt := false
	for try := 1; ; try++ {
		var wait time.Duration
		wait, err = once(ctx, c, r, &out)
		if err == nil {
			return out, nil
		}
		// An earlier try may have deleted it and its answer been lost.
		if inDoubt && r.method == http.MethodDelete && errors.Is(err, ErrNotFound) {
			return out, nil
		}
		if !errors.Is(err, ErrUnavailable) || try >= c.tries {
			break
		}
		if wait < 0 {
			inDoubt, wait = true, backoff(try)
		}
		if wait > c.longest || !sleep(ctx, wait) {
			break
		}
	}
	return out, fmt.Errorf("%s %s: %w", r.method, r.path, err)
}

// backoff is how long to wait when the server did not say: twice as long each time, and not in step with other clients.
func backoff(try int) time.Duration {
	longest := 100 * time.Millisecond << min(try, 8)
	n, err := rand.Int(rand.Reader, big.NewInt(int64(longest/2)))
	if err != nil {
		return longest
	}
	return longest/2 + time.Duration(n.Int64())
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// once sends a request once. With an ErrUnavailable it says how long to wait; a negative wait means that the outcome is not
// known.
func once[T any](ctx context.Context, c *Client, r request, out *T) (wait time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, r.method, c.base+r.path, bytes.NewReader(r.payload))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	req.Header.Set("X-API-Key", c.key)
	req.Header.Set("User-Agent", c.agent)
	req.Header.Set("Accept", "application/json")
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", r.key)
	}
	res, err := c.http.Do(req)
	if err == nil {
		defer res.Body.Close()
		var body []byte
		if body, err = readAll(res.Body); err == nil {
			return judge(res, body, r.next, out)
		}
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return -1, fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// maxAnswer bounds what is read of an answer. A page of a hundred volumes with all the labels they can have fits.
const maxAnswer = 16 << 20

func readAll(r io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = fmt.Errorf("answer of more than %d bytes", maxAnswer)
	}
	return body, err
}

// judge decodes an answer or turns it into an error.
func judge[T any](res *http.Response, body []byte, next *string, out *T) (wait time.Duration, err error) {
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return retryAfter(res.Header.Get("Retry-After")), failure(res, body)
	}
	if next != nil {
		*next = res.Header.Get("X-Next-Token")
	}
	if _, empty := any(out).(*none); empty {
		return 0, nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return 0, fmt.Errorf("answer of status %d is not the API's: %w", res.StatusCode, err)
	}
	return 0, nil
}

func failure(res *http.Response, body []byte) error {
	e := &Error{Status: res.StatusCode, RequestID: res.Header.Get("X-Request-Id")}
	var said wire.Error
	if json.Unmarshal(body, &said) == nil {
		e.Code, e.Message = said.ErrorCode, said.Message
	}
	if e.Message == "" { // something in between answered
		e.Message = http.StatusText(res.StatusCode)
	}
	return e
}

// retryAfter reads whole seconds or a date. Without either, the wait is the client's own choice, and short.
func retryAfter(header string) time.Duration {
	if seconds, err := strconv.Atoi(header); err == nil && seconds >= 0 {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(0, time.Until(at))
	}
	return backoff(1)
}
