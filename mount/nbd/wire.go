package nbd

import (
	"encoding/binary"
	"syscall"
)

// Numbers of the protocol, as in its description, doc/proto.md of the NBD project.
const (
	magicGreeting = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption   = 0x49484156454f5054 // "IHAVEOPT"
	magicReply    = 0x3e889045565a9    // of an option
	magicRequest  = 0x25609513
	magicSimple   = 0x67446698

	serverFixedNewstyle = 1 << 0
	serverNoZeroes      = 1 << 1

	optExportName = 1
	optAbort      = 2
	optList       = 3
	optInfo       = 6
	optGo         = 7

	repAck        = 1
	repServer     = 2
	repInfo       = 3
	repErrUnsup   = 1<<31 + 1
	repErrInvalid = 1<<31 + 3
	repErrUnknown = 1<<31 + 6
	repErrTooBig  = 1<<31 + 9

	infoExport    = 0
	infoName      = 1
	infoBlockSize = 3

	flagHasFlags    = 1 << 0
	flagReadOnly    = 1 << 1
	flagFlush       = 1 << 2
	flagFUA         = 1 << 3
	flagTrim        = 1 << 5
	flagWriteZeroes = 1 << 6
	flagMultiConn   = 1 << 8
	flagFastZero    = 1 << 11

	cmdRead        = 0
	cmdWrite       = 1
	cmdDisc        = 2
	cmdFlush       = 3
	cmdTrim        = 4
	cmdWriteZeroes = 6

	cmdFlagFUA      = 1 << 0
	cmdFlagNoHole   = 1 << 1
	cmdFlagFastZero = 1 << 4
)

const (
	maxOption  = 8 << 10  // bytes of an option's data: names have at most 4,096
	maxPayload = 32 << 20 // bytes of a read or write, as clients may assume of any server
	preferred  = 4096     // bytes: below it, the engine stores more index than it saves data
)

// request is a command as the client sent it; a write's data follows it.
type request struct {
	flags  uint16
	cmd    uint16
	cookie uint64
	off    int64 // negative: too large for any drive
	n      int64
	data   []byte // of a write; from the pool
}

const requestSize = 28

// decodeRequest reads a request from its requestSize bytes.
func decodeRequest(b []byte) (request, bool) {
	return request{
		flags:  binary.BigEndian.Uint16(b[4:]),
		cmd:    binary.BigEndian.Uint16(b[6:]),
		cookie: binary.BigEndian.Uint64(b[8:]),
		off:    int64(binary.BigEndian.Uint64(b[16:])),
		n:      int64(binary.BigEndian.Uint32(b[24:])),
	}, binary.BigEndian.Uint32(b) == magicRequest
}

const simpleSize = 16

func putSimple(b []byte, errno syscall.Errno, cookie uint64) {
	binary.BigEndian.PutUint32(b, magicSimple)
	binary.BigEndian.PutUint32(b[4:], wireErrno(errno))
	binary.BigEndian.PutUint64(b[8:], cookie)
}

// wireErrno is the number that the protocol has for an errno: those of Linux, but only a few of them.
func wireErrno(e syscall.Errno) uint32 {
	switch e {
	case 0, syscall.EPERM, syscall.EINVAL, syscall.ENOSPC, syscall.ENOTSUP:
		return uint32(e)
	case syscall.EROFS:
		return uint32(syscall.EPERM)
	}
	return uint32(syscall.EIO)
}
