package reconcile

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

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
	msg := make([]byte, 4, 4+len(b))
	binary.BigEndian.PutUint32(msg, uint32(len(b)))
	msg = append(msg, b...)
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, file := range files {
			fds[i] = int(file.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n, _, err := w.conn.WriteMsgUnix(msg, oob, nil)
	for err == nil && n < len(msg) {
		var m int
		m, err = w.conn.Write(msg[n:])
		n += m
	}
	return err
}

func (w *wire) receive() (*frame, error) {
	head := make([]byte, 4)
	oob := make([]byte, unix.CmsgSpace(4*8))
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
		return fail(fmt.Errorf("a message of %d bytes is too long", size))
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(w.conn, body); err != nil {
		return fail(err)
	}
	f := &frame{files: files}
	if err := json.Unmarshal(body, f); err != nil {
		return fail(err)
	}
	return f, nil
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
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}
