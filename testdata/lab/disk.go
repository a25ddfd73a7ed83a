package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"syscall"
)

// disk serves a file as a disk with a volatile write cache, in the protocol of
// network block devices (github.com/NetworkBlockDevice/nbd, doc/proto.md).
//
// Killing the emulator alone loses too little: what the guest wrote is then in this
// host's page cache and survives, whether or not the guest had it flushed. So writes
// stay in memory here until the guest flushes, and when the power is cut each sector
// that was not flushed is kept or lost, as on a real disk.
type disk struct {
	file *os.File
	size int64

	listener net.Listener
	ended    chan error

	pending map[int64][]byte // by sector: written, not flushed
}

const (
	sector = 512
	// A disk's cache is small; what does not fit goes to the medium unasked.
	cacheSectors = 32 << 20 / sector
)

func serveDisk(image, socket string) (*disk, error) {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d := &disk{file: f, size: info.Size(), listener: l, ended: make(chan error, 1), pending: map[int64][]byte{}}
	go func() { d.ended <- d.serve() }()
	return d, nil
}

// serve serves the one client there is, until it is gone.
func (d *disk) serve() error {
	c, err := d.listener.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	s := &session{disk: d, in: bufio.NewReaderSize(c, 1<<20), out: bufio.NewWriterSize(c, 1<<20)}
	err = s.negotiate()
	for err == nil {
		err = s.answer()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return nil // killed, as it is to be
	}
	return err
}

// cut ends the service once the emulator is dead. lose decides on each sector that
// was not flushed.
func (d *disk) cut(lose func() bool) (unflushed, lost int, err error) {
	d.listener.Close()
	if err := <-d.ended; err != nil && !errors.Is(err, net.ErrClosed) {
		return 0, 0, errors.Join(err, d.file.Close())
	}
	unflushed = len(d.pending)
	for _, at := range slices.Sorted(maps.Keys(d.pending)) { // in order, so that a seed means the same each time
		if lose() {
			delete(d.pending, at)
			lost++
		}
	}
	return unflushed, lost, errors.Join(d.flush(), d.file.Close())
}

// flush writes what is pending, in runs of adjacent sectors.
func (d *disk) flush() error {
	var run []byte
	var start int64
	write := func() error {
		if len(run) == 0 {
			return nil
		}
		_, err := d.file.WriteAt(run, start*sector)
		run = run[:0]
		return err
	}
	for _, at := range slices.Sorted(maps.Keys(d.pending)) {
		if at != start+int64(len(run)/sector) {
			if err := write(); err != nil {
				return err
			}
			start = at
		}
		run = append(run, d.pending[at]...)
	}
	clear(d.pending)
	return write()
}

func (d *disk) read(at int64, p []byte) error {
	if _, err := d.file.ReadAt(p, at); err != nil {
		return err
	}
	if len(d.pending) == 0 {
		return nil
	}
	for i := 0; i < len(p); i += sector {
		if newer, ok := d.pending[at/sector+int64(i/sector)]; ok {
			copy(p[i:], newer)
		}
	}
	return nil
}

func (d *disk) write(at int64, p []byte) error {
	for i := 0; i < len(p); i += sector {
		d.pending[at/sector+int64(i/sector)] = slices.Clone(p[i : i+sector])
	}
	if len(d.pending) > cacheSectors {
		return d.flush()
	}
	return nil
}

// writeThrough is write of what is to be on the medium at once, alone.
func (d *disk) writeThrough(at int64, p []byte) error {
	for i := 0; i < len(p); i += sector {
		delete(d.pending, at/sector+int64(i/sector))
	}
	_, err := d.file.WriteAt(p, at)
	return err
}

// session is a connection of the protocol. Numbers are in network order.
type session struct {
	disk *disk
	in   *bufio.Reader
	out  *bufio.Writer
}

const (
	handshakeMagic = 0x4e42444d41474943 // "NBDMAGIC"
	optionMagic    = 0x49484156454F5054 // "IHAVEOPT"
	optionReply    = 0x3e889045565a9
	requestMagic   = 0x25609513
	replyMagic     = 0x67446698

	fixedNewstyle, noZeroes = 1, 2

	optAbort, optGo                           = 2, 7
	repAck, repInfo                           = 1, 3
	repUnsupported                     uint32 = 1<<31 | 1
	infoExport, infoBlockSize          uint16 = 0, 3
	hasFlags, sendFlush, sendFUA       uint16 = 1, 4, 8
	cmdRead, cmdWrite, cmdEnd, cmdSync uint16 = 0, 1, 2, 3
	flagFUA                            uint16 = 1

	maxRequest = 32 << 20
	errIO      = 5
	errInvalid = 22
)

func (s *session) send(values ...any) error {
	for _, v := range values {
		if err := binary.Write(s.out, binary.BigEndian, v); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) negotiate() error {
	if err := errors.Join(s.send(uint64(handshakeMagic), uint64(optionMagic), uint16(fixedNewstyle|noZeroes)), s.out.Flush()); err != nil {
		return err
	}
	var flags uint32
	if err := binary.Read(s.in, binary.BigEndian, &flags); err != nil {
		return err
	}
	for {
		var option struct {
			Magic     uint64
			Kind, Len uint32
		}
		if err := binary.Read(s.in, binary.BigEndian, &option); err != nil {
			return err
		}
		if option.Magic != optionMagic || option.Len > 1<<16 {
			return fmt.Errorf("the emulator sent a malformed option to its disk: %+v", option)
		}
		if _, err := s.in.Discard(int(option.Len)); err != nil {
			return err
		}
		done, err := s.option(option.Kind)
		if err := errors.Join(err, s.out.Flush()); err != nil || done {
			return err
		}
	}
}

// option answers one; done when requests follow.
func (s *session) option(kind uint32) (done bool, err error) {
	reply := func(result uint32, body ...any) error {
		length := 0
		for _, v := range body {
			length += binary.Size(v)
		}
		return errors.Join(s.send(uint64(optionReply), kind, result, uint32(length)), s.send(body...))
	}
	switch kind {
	case optGo:
		return true, errors.Join(
			reply(repInfo, infoExport, uint64(s.disk.size), hasFlags|sendFlush|sendFUA),
			reply(repInfo, infoBlockSize, uint32(sector), uint32(4096), uint32(maxRequest)),
			reply(repAck))
	case optAbort:
		return false, errors.Join(reply(repAck), io.EOF)
	}
	return false, reply(repUnsupported)
}

// answer takes one request.
func (s *session) answer() error {
	if s.in.Buffered() == 0 {
		if err := s.out.Flush(); err != nil {
			return err
		}
	}
	var r struct {
		Magic       uint32
		Flags, Kind uint16
		Cookie      uint64
		At          uint64
		Len         uint32
	}
	if err := binary.Read(s.in, binary.BigEndian, &r); err != nil {
		return err
	}
	if r.Magic != requestMagic || r.Len > maxRequest {
		return fmt.Errorf("the emulator sent a malformed request to its disk: %+v", r)
	}
	var data []byte
	var err error
	inside := r.At%sector == 0 && r.Len%sector == 0 && r.At+uint64(r.Len) <= uint64(s.disk.size)
	switch r.Kind {
	case cmdRead:
		if data = make([]byte, r.Len); inside {
			err = s.disk.read(int64(r.At), data)
		}
	case cmdWrite:
		given := make([]byte, r.Len)
		if _, err := io.ReadFull(s.in, given); err != nil {
			return err
		}
		switch {
		case !inside:
		case r.Flags&flagFUA != 0:
			err = s.disk.writeThrough(int64(r.At), given)
		default:
			err = s.disk.write(int64(r.At), given)
		}
	case cmdSync:
		err = s.disk.flush()
	case cmdEnd:
		return io.EOF
	default:
		inside = false
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "lab: the machine's disk:", err)
		return s.send(uint32(replyMagic), uint32(errIO), r.Cookie)
	case !inside:
		return s.send(uint32(replyMagic), uint32(errInvalid), r.Cookie)
	}
	return s.send(uint32(replyMagic), uint32(0), r.Cookie, data)
}
