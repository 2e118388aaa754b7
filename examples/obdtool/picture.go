package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// piece is a part of a disk that one layer maps, or zeroes.
type piece struct {
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	Kind   string `json:"kind"` // data or zeroes
	Layer  int    `json:"layer"`
}

// mapFacts is what map prints as JSON. What no piece covers is absent.
type mapFacts struct {
	VirtualSize int64    `json:"virtualSize"`
	Layers      []string `json:"layers"` // bottom first
	Pieces      []piece  `json:"pieces"`
}

func drawMap(c *call, args []string) error {
	stack := c.stackFlags()
	rows := c.flags.Int("rows", 16, "`lines` of the picture")
	byLayer := c.flags.Bool("by-layer", false, "show which layer data comes from: 0 is the bottom, after 9 come letters")
	ascii := c.flags.Bool("ascii", false, "draw without block characters")
	args, err := c.parse(args, 0, -1)
	if err != nil {
		return err
	}
	if *rows < 1 || *rows > 1000 {
		return lsmt.Invalid("rows", *rows, "1 to 1000")
	}
	layers, err := stack.layers(args)
	if err != nil {
		return err
	}
	facts, err := mapOf(layers, int64(stack.size))
	if err != nil {
		return err
	}
	columns, terminal := width(c.stdout)
	p := palette{color: terminal && os.Getenv("NO_COLOR") == "", byLayer: *byLayer, ascii: *ascii}
	return c.print(facts, func(w io.Writer) { p.draw(w, facts, columns, *rows) })
}

func mapOf(args []layerArg, size int64) (*mapFacts, error) {
	o, err := openAll(args)
	if err != nil {
		return nil, err
	}
	defer o.close() // only read
	segs, _, err := o.merged(false)
	if err != nil {
		return nil, err
	}
	if size == 0 {
		size = o.size()
	}
	m := &mapFacts{VirtualSize: size, Pieces: []piece{}}
	for _, a := range args {
		m.Layers = append(m.Layers, a.name)
	}
	for _, s := range segs {
		m.add(s, len(args)-1-int(s.Tag()))
	}
	return m, nil
}

// add appends a segment, as far as it is on the disk, or makes the last piece longer.
func (m *mapFacts) add(s lsmt.Segment, layer int) {
	off := int64(s.LBA()) * lsmt.SectorSize
	r := piece{off, min(int64(s.Len())*lsmt.SectorSize, m.VirtualSize-off), "data", layer}
	if s.Zeroed() {
		r.Kind = "zeroes"
	}
	if r.Length <= 0 {
		return
	}
	if n := len(m.Pieces) - 1; n >= 0 {
		if last := &m.Pieces[n]; last.Offset+last.Length == off && last.Kind == r.Kind && last.Layer == layer {
			last.Length += r.Length
			return
		}
	}
	m.Pieces = append(m.Pieces, r)
}

// cell is the part of a disk behind one character.
type cell struct {
	size, data, zeroes int64 // bytes
	layer              int   // of the most data in one piece
	most               int64
}

// cells cuts the disk into n parts of whole sectors, or fewer if there are not as many sectors.
func (m *mapFacts) cells(n int) []cell {
	each := max((m.VirtualSize/lsmt.SectorSize+int64(n)-1)/int64(n), 1) * lsmt.SectorSize
	all := make([]cell, (m.VirtualSize+each-1)/each)
	for i := range all {
		all[i].size = min(each, m.VirtualSize-int64(i)*each)
	}
	for _, r := range m.Pieces {
		for off, end := r.Offset, r.Offset+r.Length; off < end; {
			i := off / each
			next := min((i+1)*each, end)
			all[i].add(r, next-off)
			off = next
		}
	}
	return all
}

func (c *cell) add(r piece, n int64) {
	if r.Kind == "zeroes" {
		c.zeroes += n
		return
	}
	c.data += n
	if n > c.most {
		c.most, c.layer = n, r.Layer
	}
}

// palette is how cells are drawn.
type palette struct{ color, byLayer, ascii bool }

// The letters of a cell, and the terminal's colors for them: much data, some, zeroes, absent.
var (
	blocks = [4]string{"█", "▒", "0", "·"}
	plain  = [4]string{"#", "+", "0", "."}
	colors = [4]string{"\x1b[32m", "\x1b[32m", "\x1b[33m", "\x1b[90m"}
)

const layerLetters = "0123456789abcdefghijklmnopqrstuvwxyz"

func (p palette) letters() [4]string {
	if p.ascii {
		return plain
	}
	return blocks
}

func kindOf(c cell) int {
	switch {
	case c.data*2 >= c.size:
		return 0
	case c.data > 0:
		return 1
	case c.zeroes > 0:
		return 2
	}
	return 3
}

func (p palette) letter(c cell) string {
	kind := kindOf(c)
	if p.byLayer && kind < 2 {
		i := c.layer % len(layerLetters)
		return layerLetters[i : i+1]
	}
	return p.letters()[kind]
}

func (p palette) paint(kind int, text string) string {
	if !p.color {
		return text
	}
	return colors[kind] + text + "\x1b[0m"
}

// line draws cells; a color is set once for neighbours that share it.
func (p palette) line(all []cell) string {
	var line, same strings.Builder
	for i, c := range all {
		same.WriteString(p.letter(c))
		if i+1 == len(all) || colors[kindOf(all[i+1])] != colors[kindOf(c)] {
			line.WriteString(p.paint(kindOf(c), same.String()))
			same.Reset()
		}
	}
	return line.String()
}

// draw prints the picture, at most columns wide, each line with its offset in front.
func (p palette) draw(w io.Writer, m *mapFacts, columns, rows int) {
	label := len(fmt.Sprintf("%x", m.VirtualSize)) + 2
	across := max(columns-label, 8)
	all := m.cells(across * rows)
	at := int64(0)
	for len(all) > 0 {
		n := min(across, len(all))
		fmt.Fprintf(w, "%0*x  %s\n", label-2, at, p.line(all[:n]))
		for _, c := range all[:n] {
			at += c.size
		}
		all = all[n:]
	}
	p.legend(w, m)
}

func (p palette) legend(w io.Writer, m *mapFacts) {
	var data, zeroes int64
	for _, r := range m.Pieces {
		if r.Kind == "data" {
			data += r.Length
		} else {
			zeroes += r.Length
		}
	}
	l := p.letters()
	fmt.Fprintf(w, "%s data   %s data in less than half   %s zeroes   %s absent\n",
		p.paint(0, l[0]), p.paint(1, l[1]), p.paint(2, l[2]), p.paint(3, l[3]))
	fmt.Fprintf(w, "%s: %s of data, %s of zeroes, %s absent, in %d pieces\n", bytesText(m.VirtualSize),
		bytesText(data), bytesText(zeroes), bytesText(m.VirtualSize-data-zeroes), len(m.Pieces))
}
