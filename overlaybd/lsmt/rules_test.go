package lsmt

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
)

// A user tag of full length has no NUL behind it, and is kept by whoever compacts the layer with it. A seal drops
// that of an upper's header, as the reference does.
func TestUserTagOfFullLength(t *testing.T) {
	tag := strings.Repeat("é", MaxUserTag/2)
	var out bytes.Buffer
	must(t, Compact(t.Context(), &out, nil, nil, CompactOptions{VirtualSize: goldenSize, UserTag: tag}))
	if l := openLayerBytes(t, out.Bytes()); l.UserTag != tag {
		t.Errorf("user tag is %q", l.UserTag)
	}
	l := newTestLog(t, LogOptions{VirtualSize: goldenSize})
	l.head.UserTag = tag
	must(t, l.Append(make([]byte, SectorSize), 0))
	_, err := l.Seal()
	must(t, err)
	if l := openLayerBytes(t, readAll(t, l.Path())); l.UserTag != "" {
		t.Errorf("sealed layer has user tag %q", l.UserTag)
	}
}

// Uuids are hex digits of either case, of any version.
func TestUUIDFields(t *testing.T) {
	for text, want := range map[string]string{
		"ABCDEF00-1111-0000-0000-0123456789AB": "abcdef00-1111-0000-0000-0123456789ab",
		"abcdef00-1111-f000-f000-0123456789ab": "abcdef00-1111-f000-f000-0123456789ab",
		"abcdef00-1111-f000-f000-0123456789a":  nullUUID,
		"abcdef00-1111-f000-f000-0123456789ag": nullUUID,
		"":                                     nullUUID,
	} {
		field := make([]byte, uuidField)
		copy(field, text)
		if got := parseUUID(field).String(); got != want {
			t.Errorf("%q is read as %s", text, got)
		}
	}
}

// The reference fills its buffer of records up with padding entries before it appends it: at the front of a file, in
// its middle and in rows. None of them is taken for a mark of ours, and their number is not that of records.
func TestPaddingOfOtherWritersIsSkipped(t *testing.T) {
	l := newTestLog(t, LogOptions{VirtualSize: goldenSize, BootID: "boot"})
	runScript(t, l, "s1")
	must(t, l.Sync())
	want := logSegments(l)
	b := readAll(t, l.paths.Index)
	padded := slices.Clone(b[:HeaderSize])
	pad := make([]byte, entrySize)
	paddingEntry.encode(pad)
	padded = append(padded, pad...)
	records := uint64(0)
	for e := b[HeaderSize:]; len(e) > 0; e = e[entrySize:] {
		if decodeSegment(e).isPadding() {
			continue
		}
		records++
		padded = append(padded, e[:entrySize]...)
		padded = append(padded, bytes.Repeat(pad, int(records%4))...)
	}
	must(t, l.Close())
	must(t, os.WriteFile(l.paths.Index, padded, 0o600))
	must(t, os.Remove(l.paths.Pending))
	again, r, err := OpenLog(l.paths, LogOptions{BootID: "boot"})
	must(t, err)
	if got := logSegments(again); !slices.Equal(got, want) || r != (Recovery{}) || again.queue.head.Load() != records {
		t.Errorf("%d records, %+v, segments %v, want %d and %v", again.queue.head.Load(), r, got, records, want)
	}
	// It goes on as a log of ours, also when it is rewritten.
	must(t, again.Append(make([]byte, SectorSize), 3000))
	reclaim(t, again)
	must(t, again.Append(make([]byte, SectorSize), 3002))
	must(t, again.Close())
	last, _, err := OpenLog(l.paths, LogOptions{BootID: "boot"})
	must(t, err)
	defer last.Close()
	if n := last.Segments(); n != len(want)+2 {
		t.Errorf("%d segments, want %d", n, len(want)+2)
	}
}
