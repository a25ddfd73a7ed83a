package reconcile

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The agent's socket carries frames: a length (4 bytes, big endian), then JSON.
// File descriptors ride on the frame they belong to. One connection is one call:
// the client sends a call frame, the agent answers with any number of progress
// and confirm frames and ends with a result or error. A client that vanishes, or
// sends a cancel frame, counts as one Ctrl-C.

// SocketName is the agent's socket in the run dir.
const SocketName = "agent.sock"

// maxFrame bounds a frame; configurations of ten thousand sandboxes fit well.
const maxFrame = 256 << 20

// maxFiles is how many descriptors can ride on a frame: an exec's three streams.
const maxFiles = 8

type frame struct {
	Type   string          `json:"type"` // call, progress, confirm, started; answer, cancel, signal; result, error
	Method string          `json:"method,omitempty"`
	Body   json.RawMessage `json:"body,omitempty"`
	files  []*os.File
}

// wire reads and writes frames on one connection.
type wire struct {
	conn *net.UnixConn
	mu   sync.Mutex // one writer at a time
}

// sendTimeout bounds how long a peer that does not read holds up its sender.
const sendTimeout = 30 * time.Second

func (w *wire) send(typ, method string, body any, files ...*os.File) error {
	f := frame{Type: typ, Method: method}
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		f.Body = b
	}
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if len(b) > maxFrame {
		return tooLong(len(b))
	}
	msg := make([]byte, 4, 4+len(b))
	binary.BigEndian.PutUint32(msg, uint32(len(b)))
	msg = append(msg, b...)
	return withFDs(files, nil, func(fds []int) error {
		var oob []byte
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if err := w.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
			return err
		}
		n, _, err := w.conn.WriteMsgUnix(msg, oob, nil)
		for err == nil && n < len(msg) {
			var m int
			m, err = w.conn.Write(msg[n:])
			n += m
		}
		return err
	})
}

// withFDs calls do with the files' descriptors, which stay open meanwhile, and
// keeps the files' blocking mode (File.Fd would change it).
func withFDs(files []*os.File, fds []int, do func([]int) error) error {
	if len(files) == 0 {
		return do(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) {
		inner = withFDs(files[1:], append(fds, int(fd)), do)
	}); err != nil {
		return err
	}
	return inner
}

func tooLong(n int) error {
	return &Error{Kind: Invalid, Message: fmt.Sprintf("a message of %d bytes is too long, at most %d are allowed", n, maxFrame)}
}

func (w *wire) receive() (*frame, error) {
	head := make([]byte, 4)
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, _, _, err := w.conn.ReadMsgUnix(head, oob)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	files, err := received(oob[:oobn])
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*frame, error) {
		for _, f := range files {
			f.Close()
		}
		return nil, err
	}
	if _, err := io.ReadFull(w.conn, head[n:]); err != nil {
		return fail(err)
	}
	size := binary.BigEndian.Uint32(head)
	if size > maxFrame {
		return fail(tooLong(int(size)))
	}
	// Memory is taken as bytes come, not as they are announced.
	var body bytes.Buffer
	if _, err := io.CopyN(&body, w.conn, int64(size)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fail(err)
	}
	f := &frame{files: files}
	if err := json.Unmarshal(body.Bytes(), f); err != nil {
		return fail(&Error{Kind: Invalid, Message: "a message cannot be read: " + err.Error()})
	}
	return f, nil
}

// close lets go of files that came with a frame and are not wanted.
func (f *frame) close() {
	for _, file := range f.files {
		file.Close()
	}
}

func received(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}
