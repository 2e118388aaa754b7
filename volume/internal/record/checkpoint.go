package record

import (
	"iter"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Checkpoint is a kept stack of a volume. Its Origin names the volume and generation it was made from.
type Checkpoint struct {
	Head `json:",embed"`

	Extra jsontext.Value `json:",embed"`
}

// References yields the store key of every layer that the checkpoint refers to.
func (c Checkpoint) References() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, l := range c.Stack.Layers {
			if !yield(l.Key) {
				return
			}
		}
	}
}

// MayCopy reports whether a child may refer to the stack.
func (c Checkpoint) MayCopy(s Stack) bool {
	return c.Status == StatusReady &&
		!slices.ContainsFunc(s.Layers, func(l Layer) bool { return !c.Stack.Contains(l.Key) })
}
