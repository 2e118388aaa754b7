package lsmt

import "io"

// View is what a disk reads from at one moment: the sealed layers, resolved to one index, and up to two logs above
// them. It is immutable, so that readers need no lock; a Log inside it goes on growing.
type View struct {
	Logs  []*Log        // topmost first
	Base  *Index        // all sealed layers
	Files []io.ReaderAt // stored bytes by tag
}

// maxRun bounds how many segments ReadAt looks up before it reads; their list lies on the stack.
const maxRun = 32

// ReadAt fills p with the content of the disk from byte off on; both must be whole sectors. What is not mapped is zero.
// It allocates nothing and holds no lock while it reads a file.
func (v *View) ReadAt(p []byte, off int64) error {
	lba := uint64(off) / SectorSize
	end := lba + uint64(len(p))/SectorSize
	if lba == end {
		return nil
	}
	// Most reads are of a few pages, and what they want lies in one segment.
	at := unknown
	s, stop, ok := v.resolve(&at, lba, end)
	switch {
	case stop < end:
		return v.readMany(p, lba, end)
	case ok:
		return v.readSegment(p, s)
	}
	clear(p)
	return nil
}

// readMany is ReadAt for what lies in several segments. It looks up as many as its list holds and reads them, then the
// next ones.
func (v *View) readMany(p []byte, lba, end uint64) error {
	var found [maxRun]Segment
	for lba < end {
		n, next := v.lookup(&found, lba, end)
		if err := v.readRun(p[:(next-lba)*SectorSize], lba, found[:n]); err != nil {
			return err
		}
		p = p[(next-lba)*SectorSize:]
		lba = next
	}
	return nil
}

// lookup lists the segments of [lba, end), clipped, in order. It stops early when the list is full; next is where.
func (v *View) lookup(found *[maxRun]Segment, lba, end uint64) (n int, next uint64) {
	at := unknown
	for lba < end && n < maxRun {
		s, stop, ok := v.resolve(&at, lba, end)
		if ok {
			found[n] = s
			n++
		}
		lba = stop
	}
	return n, lba
}

// unknown is a position in the base before the first look at it.
const unknown = -1

// resolve returns the topmost segment that maps sector lba, clipped to the part of [lba, stop) for which that holds. If
// none does it returns false, and stop is the end of the hole, at most end. Calls with rising lba share at, so that
// those behind the first find their place in the base without a search.
func (v *View) resolve(at *int, lba, end uint64) (s Segment, stop uint64, ok bool) {
	for _, l := range v.Logs {
		s, ok := l.Next(lba)
		if ok && s.LBA() <= lba {
			s = s.Clip(lba, end)
			return s, s.End(), true
		}
		if ok {
			end = min(end, s.LBA())
		}
	}
	if *at == unknown {
		*at = v.Base.search(lba)
	} else {
		*at = v.Base.advance(*at, lba)
	}
	if *at == len(v.Base.segs) {
		return Segment{}, end, false
	}
	if s = v.Base.segs[*at]; s.LBA() > lba {
		return Segment{}, min(end, s.LBA()), false
	}
	s = s.Clip(lba, end)
	return s, s.End(), true
}

// readRun fills p, the content from lba on, from the segments found in it, with one read for all that lie side by side.
func (v *View) readRun(p []byte, lba uint64, found []Segment) error {
	for i := 0; i < len(found); {
		s := found[i]
		i++
		clear(p[:(s.LBA()-lba)*SectorSize])
		p = p[(s.LBA()-lba)*SectorSize:]
		n := s.Len()
		for ; i < len(found) && adjoins(s, n, found[i]); i++ {
			n += found[i].Len()
		}
		if err := v.readSegment(p[:n*SectorSize], s); err != nil {
			return err
		}
		p = p[n*SectorSize:]
		lba = s.LBA() + n
	}
	clear(p)
	return nil
}

// adjoins reports whether t goes on where s, made n sectors long, ends: on the disk and in its file.
func adjoins(s Segment, n uint64, t Segment) bool {
	return t.LBA() == s.LBA()+n && t.stored == s.stored+n && !s.Zeroed()
}

func (v *View) readSegment(p []byte, s Segment) error {
	if s.Zeroed() {
		clear(p)
		return nil
	}
	off := int64(s.MOffset()) * SectorSize
	n, err := v.Files[s.Tag()].ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	return shortRead("data", off, n, len(p), err)
}

// IsHole reports whether no layer or log maps anything of n sectors from lba on, zeroes included.
func (v *View) IsHole(lba, n uint64) bool {
	at := unknown
	_, stop, ok := v.resolve(&at, lba, lba+n)
	return !ok && stop == lba+n
}
