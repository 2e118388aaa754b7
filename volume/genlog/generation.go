package genlog

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// format is the body format that this version writes, and the newest minReader that it can read.
	format = 1
	// minReader is the oldest format whose readers understand what this version writes.
	minReader = 1
)

// Generation is one immutable state of a record, with its place in the log. It may share memory with other generations:
// treat State as read-only.
type Generation[S any] struct {
	Format    int `json:"format"`
	MinReader int `json:"minReader"`
	// Number counts from 1 without gaps.
	Number uint64 `json:"generation"`
	// Nonce is fresh for every put, so that a writer recognises its own body in a slot.
	Nonce string `json:"nonce"`
	// Previous is the nonce of generation Number-1, which proves what this one was built on.
	Previous string    `json:"previous"`
	At       time.Time `json:"at"`
	Op       string    `json:"op"`
	// Kept names the older generations that pruning leaves alone, oldest first.
	Kept  []Kept `json:"kept"`
	State S      `json:"state"`
	// Unknown holds members of the envelope that this version does not know. They are written again.
	Unknown jsontext.Value `json:",embed"`
}

// Kept names one generation by number and nonce.
type Kept struct {
	Number  uint64         `json:"n"`
	Nonce   string         `json:"nonce"`
	At      time.Time      `json:"at"`
	Unknown jsontext.Value `json:",embed"`
}

// name returns the entry that would keep g.
func (g Generation[S]) name() Kept { return Kept{Number: g.Number, Nonce: g.Nonce, At: g.At} }

// Keeps returns the entry of Kept for generation n, and whether there is one.
func (g Generation[S]) Keeps(n uint64) (Kept, bool) {
	for _, k := range g.Kept {
		if k.Number == n {
			return k, true
		}
	}
	return Kept{}, false
}

// encode returns the body of g. Deterministic, so that golden bytes can be compared.
func (g Generation[S]) encode() ([]byte, error) {
	body, err := json.Marshal(g, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode generation %d: %w", g.Number, err)
	}
	return body, nil
}

// decode interprets the body found under key as generation n.
func decode[S any](key string, n uint64, body []byte) (Generation[S], error) {
	// minReader comes first, alone: a body for newer readers may differ in every other member.
	var header struct {
		MinReader int `json:"minReader"`
	}
	if err := json.Unmarshal(body, &header); err != nil {
		return Generation[S]{}, &UnreadableError{Key: key, Reason: err}
	}
	if header.MinReader > format {
		return Generation[S]{}, &UnreadableError{Key: key, MinReader: header.MinReader}
	}
	var g Generation[S]
	err := json.Unmarshal(body, &g)
	if err == nil {
		err = g.check(n)
	}
	if err != nil {
		return Generation[S]{}, &UnreadableError{Key: key, MinReader: header.MinReader, Reason: err}
	}
	return g, nil
}

// check finds bodies that decode but are not generation n of any log.
func (g Generation[S]) check(n uint64) error {
	switch {
	case g.Format < 1:
		return fmt.Errorf("format %d is below 1", g.Format)
	case g.MinReader < 1:
		return fmt.Errorf("minReader %d is below 1", g.MinReader)
	case g.Number != n:
		return fmt.Errorf("body says generation %d, its key says %d", g.Number, n)
	case g.Nonce == "":
		return errors.New("nonce is empty")
	case (g.Number == 1) != (g.Previous == ""):
		return fmt.Errorf("generation %d has previous %q", g.Number, g.Previous)
	}
	return nil
}
