package lsmt

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// The end of a layer says what opening it whole says.
func TestOpenTailIsOpenLayerWithoutTheHeader(t *testing.T) {
	segs := []Segment{DataSegment(0, 8, firstMOffset, 0), ZeroSegment(20, 5, firstMOffset+8, 0)}
	data := bytes.NewReader(make([]byte, 1<<20))
	b := compacted(t, segs, files(data), CompactOptions{VirtualSize: 1 << 20, UUID: uuid.New(), UserTag: "tag"})
	want, err := OpenLayer(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	clear(b[:HeaderSize])
	got, err := OpenTail(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Segment{})); diff != "" {
		t.Error(diff)
	}
	if _, err := OpenLayer(bytes.NewReader(b), int64(len(b))); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	for _, n := range []int{0, HeaderSize, len(b) - 1, len(b) - HeaderSize} {
		if _, err := OpenTail(bytes.NewReader(b[:n]), int64(n)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
