package e2bhttp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sandvol/sandvol/volume"
)

// nextTokenHeader is where the next page begins, in E2B's convention.
const nextTokenHeader = "X-Next-Token"

// maxPage is E2B's limit of a page.
const maxPage = 100

// list serves GET /volumes: all volumes, since E2B's SDK does not ask for pages, or one page if limit is given.
func (c *call) list() error {
	o, err := c.listOptions()
	if err != nil {
		return err
	}
	return reply(c, o, c.volumes.List, ViewVolume, func(v volume.Volume) string { return v.ID })
}

// listOptions decodes the query of a list.
func (c *call) listOptions() (o volume.ListOptions, err error) {
	limit, err := c.query("limit")
	if err != nil {
		return o, err
	}
	if limit != "" {
		if o.Limit, err = strconv.Atoi(limit); err != nil || o.Limit < 1 || o.Limit > maxPage {
			return o, bad("", "query parameter limit: must be a whole number from 1 to %d", maxPage)
		}
	}
	if o.After, err = c.query("nextToken"); err != nil {
		return o, err
	}
	if o.After != "" && !wellFormed(o.After) {
		return o, bad("", "query parameter nextToken: not one of ours")
	}
	if o.Labels, err = c.labels(); err != nil {
		return o, err
	}
	status, err := c.query("status")
	o.Status = volume.Status(status)
	switch o.Status {
	case "", volume.StatusReady, volume.StatusUploading, volume.StatusFailed, volume.StatusDeleting, volume.StatusUnreadable:
		return o, err
	}
	return o, bad("", "query parameter status: %.40q is no status", status)
}

// labels decodes label=key=value, which can be repeated.
func (c *call) labels() (map[string]string, error) {
	var labels map[string]string
	for _, l := range c.r.URL.Query()["label"] {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			return nil, bad("", "query parameter label: must be key=value")
		}
		if labels == nil {
			labels = map[string]string{}
		}
		labels[k] = v
	}
	return labels, nil
}

// reply answers with a list: a page if the options have a limit, else the whole, as it is read.
func reply[T, W any](c *call, o volume.ListOptions, list func(context.Context, volume.ListOptions) iter.Seq2[T, error],
	view func(T) W, id func(T) string) error {
	if o.Limit == 0 {
		return stream(c, list(c.r.Context(), o), view)
	}
	// One more than was asked for tells whether there is a next page.
	limit := o.Limit
	o.Limit++
	page, last := make([]W, 0, limit), ""
	for item, err := range list(c.r.Context(), o) {
		if err != nil {
			return err
		}
		if len(page) == limit {
			c.w.Header().Set(nextTokenHeader, last)
			break
		}
		page, last = append(page, view(item)), id(item)
	}
	writeJSON(c.w, http.StatusOK, page)
	return nil
}

// streamBuffer is how much of a list is held back before the status is sent.
const streamBuffer = 32 << 10

// stream writes a list while it is read, so that its length does not matter. An error before anything was sent is answered
// as such; after that the connection is cut.
func stream[T, W any](c *call, items iter.Seq2[T, error], view func(T) W) error {
	out := bufio.NewWriterSize(&chunks{c: c}, streamBuffer)
	separator := byte('[')
	for item, err := range items {
		if err != nil {
			return err
		}
		if err := writeItem(out, separator, view(item)); err != nil {
			return clientGone(err)
		}
		separator = ','
	}
	if separator == '[' {
		_ = out.WriteByte('[') // into the buffer
	}
	_ = out.WriteByte(']') // the error stays with the writer
	return clientGone(out.Flush())
}

func writeItem(out *bufio.Writer, separator byte, item any) error {
	if err := out.WriteByte(separator); err != nil {
		return err
	}
	body, err := json.Marshal(item, json.Deterministic(true))
	if err != nil {
		return err
	}
	_, err = out.Write(body)
	return err
}

// errClientGone: the client took no more of an answer.
var errClientGone = errors.New("the client stopped reading")

func clientGone(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errClientGone, err)
}

// chunks sends a list's parts. Each has the whole time limit: a long list takes long, a client that stops does not.
type chunks struct {
	c    *call
	sent bool
}

func (w *chunks) Write(p []byte) (int, error) {
	if !w.sent {
		w.c.w.Header().Set("Content-Type", "application/json")
		w.sent = true
	}
	control := http.NewResponseController(w.c.w)
	_ = control.SetWriteDeadline(time.Now().Add(w.c.h.timeout)) // see serve
	n, err := w.c.w.Write(p)
	if err == nil {
		err = control.Flush()
		if errors.Is(err, http.ErrNotSupported) {
			err = nil
		}
	}
	return n, err
}
