package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/sandvol/sandvol/mount/internal/exposed"
)

// negotiate greets a client and answers its options until it has chosen the export.
func (c *conn) negotiate() error {
	var hello [18]byte
	binary.BigEndian.PutUint64(hello[:], magicGreeting)
	binary.BigEndian.PutUint64(hello[8:], magicOption)
	binary.BigEndian.PutUint16(hello[16:], serverFixedNewstyle|serverNoZeroes)
	if _, err := c.sock.Write(hello[:]); err != nil {
		return err
	}
	var raw [4]byte
	if _, err := io.ReadFull(c.in, raw[:]); err != nil {
		return err
	}
	flags := binary.BigEndian.Uint32(raw[:])
	if flags&^(serverFixedNewstyle|serverNoZeroes) != 0 || flags&serverFixedNewstyle == 0 {
		return fmt.Errorf("client flags %#x", flags)
	}
	for {
		chosen, err := c.option(flags&serverNoZeroes != 0)
		if err != nil || chosen {
			return err
		}
	}
}

// option answers one option. chosen: the transmission begins.
func (c *conn) option(noZeroes bool) (chosen bool, err error) {
	var head [16]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return false, err
	}
	if m := binary.BigEndian.Uint64(head[:]); m != magicOption {
		return false, fmt.Errorf("option magic %#x", m)
	}
	opt, n := binary.BigEndian.Uint32(head[8:]), binary.BigEndian.Uint32(head[12:])
	if n > maxOption {
		if opt == optExportName || n > maxPayload {
			return false, fmt.Errorf("option %d of %d bytes", opt, n)
		}
		if _, err := io.CopyN(io.Discard, c.in, int64(n)); err != nil {
			return false, err
		}
		return false, c.reply(opt, repErrTooBig, nil)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(c.in, data); err != nil {
		return false, err
	}
	switch opt {
	case optExportName:
		return true, c.exportName(string(data), noZeroes)
	case optAbort:
		return false, errors.Join(exposed.ErrLeft, c.reply(opt, repAck, nil))
	case optList:
		return false, c.list(data)
	case optInfo, optGo:
		return c.info(opt, data)
	}
	return false, c.reply(opt, repErrUnsup, nil)
}

func (c *conn) reply(opt, kind uint32, data []byte) error {
	b := make([]byte, 20, 20+len(data))
	binary.BigEndian.PutUint64(b, magicReply)
	binary.BigEndian.PutUint32(b[8:], opt)
	binary.BigEndian.PutUint32(b[12:], kind)
	binary.BigEndian.PutUint32(b[16:], uint32(len(data)))
	_, err := c.sock.Write(append(b, data...))
	return err
}

// export is size and flags, as every way to choose the drive answers them.
func (c *conn) export() []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(c.drive.Bytes.Size()))
	flags := flagHasFlags | flagFlush | flagFUA | flagTrim | flagWriteZeroes | flagMultiConn | flagFastZero
	if c.drive.ReadOnly {
		flags |= flagReadOnly
	}
	return binary.BigEndian.AppendUint16(b, uint16(flags))
}

// exportName is the old way to choose; it has no answer for a wrong name but the end of the connection.
func (c *conn) exportName(name string, noZeroes bool) error {
	if !c.knows(name) {
		return fmt.Errorf("export %q", name)
	}
	b := c.export()
	if !noZeroes {
		b = append(b, make([]byte, 124)...)
	}
	_, err := c.sock.Write(b)
	return err
}

func (c *conn) knows(name string) bool { return name == "" || name == c.drive.Name }

func (c *conn) list(data []byte) error {
	if len(data) != 0 {
		return c.reply(optList, repErrInvalid, nil)
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(len(c.drive.Name)))
	if err := c.reply(optList, repServer, append(b, c.drive.Name...)); err != nil {
		return err
	}
	return c.reply(optList, repAck, nil)
}

// info answers INFO, and GO, which also chooses.
func (c *conn) info(opt uint32, data []byte) (chosen bool, err error) {
	name, asked, ok := decodeInfo(data)
	switch {
	case !ok:
		return false, c.reply(opt, repErrInvalid, nil)
	case !c.knows(name):
		return false, c.reply(opt, repErrUnknown, nil)
	}
	answers := [][]byte{append([]byte{0, infoExport}, c.export()...)}
	for _, kind := range asked {
		switch kind {
		case infoName:
			answers = append(answers, append([]byte{0, infoName}, c.drive.Name...))
		case infoBlockSize:
			b := binary.BigEndian.AppendUint32([]byte{0, infoBlockSize}, 1)
			b = binary.BigEndian.AppendUint32(b, preferred)
			answers = append(answers, binary.BigEndian.AppendUint32(b, maxPayload))
		}
	}
	for _, a := range answers {
		if err := c.reply(opt, repInfo, a); err != nil {
			return false, err
		}
	}
	return opt == optGo, c.reply(opt, repAck, nil)
}

// decodeInfo reads the data of INFO and GO: the export's name and which further facts are asked for.
func decodeInfo(data []byte) (name string, asked []uint16, ok bool) {
	if len(data) < 6 {
		return "", nil, false
	}
	n := int64(binary.BigEndian.Uint32(data))
	if n > int64(len(data)-6) {
		return "", nil, false
	}
	name, data = string(data[4:4+n]), data[4+n:]
	count := int(binary.BigEndian.Uint16(data))
	if data = data[2:]; len(data) != 2*count {
		return "", nil, false
	}
	for ; len(data) > 0; data = data[2:] {
		asked = append(asked, binary.BigEndian.Uint16(data))
	}
	return name, asked, true
}
