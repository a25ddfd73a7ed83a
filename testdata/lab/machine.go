package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"pinfold/testdata/lab/wire"
)

// machine is the emulated machine, from power on to power off.
type machine struct {
	qemu    *exec.Cmd
	disk    *disk
	port    net.Conn
	sockets string // the directory they are in

	words chan wire.Word // closed when it is off

	mu     sync.Mutex
	broken string    // the kernel's last words, if they were last words
	heard  time.Time // when the newest line or word came
}

// connectBound is how long the emulator may take to come up itself.
const connectBound = 30 * time.Second

// powerOn starts the machine. clock is what its real-time clock says.
func powerOn(ctx context.Context, l *lab, clock time.Time) (m *machine, err error) {
	dir, err := os.MkdirTemp(l.dir, "boot") // socket paths are short
	if err != nil {
		return nil, err
	}
	socket, port := filepath.Join(dir, "disk"), filepath.Join(dir, "port")
	m = &machine{sockets: dir, words: make(chan wire.Word), heard: time.Now()}
	if m.disk, err = serveDisk(l.image, socket); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	listener, err := net.Listen("unix", port)
	if err != nil {
		return nil, errors.Join(err, m.abandon())
	}
	defer listener.Close()
	m.qemu = exec.CommandContext(ctx, "qemu-system-x86_64",
		"-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "3072",
		"-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-rtc", "base="+clock.UTC().Format("2006-01-02T15:04:05"),
		"-kernel", l.kernel, "-initrd", l.initrd, "-append", "root=/dev/vda rw init=/usr/local/bin/guest console=ttyS0 quiet panic=-1",
		"-drive", "id=disk,if=none,format=raw,cache=writeback,file=nbd+unix:///?socket="+socket,
		// Not nvme: the emulated one forgets that some writes are to be on the medium
		// at once.
		"-device", "virtio-blk-pci,drive=disk",
		"-device", "virtio-serial", "-chardev", "socket,id=port,path="+port, "-device", "virtserialport,chardev=port,name="+wire.Port)
	m.qemu.Stderr = os.Stderr
	console, err := m.qemu.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, m.abandon())
	}
	if err := m.qemu.Start(); err != nil {
		return nil, errors.Join(err, m.abandon())
	}
	listener.(*net.UnixListener).SetDeadline(time.Now().Add(connectBound))
	if m.port, err = listener.Accept(); err != nil {
		return nil, errors.Join(fmt.Errorf("the emulator did not come up: %w", err), m.abandon())
	}
	var readers sync.WaitGroup
	readers.Go(func() { m.watch(console, l.console, l.out) })
	readers.Go(m.listen)
	go func() { readers.Wait(); close(m.words) }()
	return m, nil
}

// watch passes the machine's own lines on, and keeps everything in the console's log.
func (m *machine) watch(console io.Reader, log, out io.Writer) {
	lines := bufio.NewReader(console)
	for {
		line, err := lines.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		m.hear()
		if line != "" {
			fmt.Fprintln(log, line)
		}
		if _, own, ok := strings.Cut(line, wire.Prefix); ok {
			fmt.Fprintln(out, own)
		}
		for _, words := range []string{"Kernel panic", "BUG:", "Oops", "EXT4-fs error", "soft lockup"} {
			if strings.Contains(line, words) {
				m.mu.Lock()
				m.broken = line
				m.mu.Unlock()
			}
		}
		if err != nil {
			return
		}
	}
}

func (m *machine) listen() {
	words := json.NewDecoder(m.port)
	for {
		var w wire.Word
		if words.Decode(&w) != nil {
			return // off, or cut off in the middle of a word
		}
		m.hear()
		m.words <- w
	}
}

// kernelTrouble is what the kernel complained of, if it did.
func (m *machine) kernelTrouble() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.broken
}

func (m *machine) hear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard = time.Now()
}

// silentSince is how long ago the newest line or word came.
func (m *machine) silentSince() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Since(m.heard)
}

func (m *machine) tell(t wire.Task) error { return json.NewEncoder(m.port).Encode(t) }

// waitOff waits until the machine has switched itself off; false: not in time.
func (m *machine) waitOff(bound time.Duration) bool {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	for {
		select {
		case _, ok := <-m.words:
			if !ok {
				return true
			}
		case <-timer.C:
			return false
		}
	}
}

// cut takes the power away, if it is still on: the emulator is killed, and lose
// decides on each sector that its disk had not been told to flush. What was said
// until then is handed to keep.
func (m *machine) cut(lose func() bool, keep func(wire.Word)) (unflushed, lost int, err error) {
	_ = m.qemu.Process.Kill() // it may be off already
	for w := range m.words {
		keep(w)
	}
	m.port.Close()
	_ = m.qemu.Wait() // it was killed
	unflushed, lost, err = m.disk.cut(lose)
	return unflushed, lost, errors.Join(err, os.RemoveAll(m.sockets))
}

// abandon is the end of a machine that did not come up.
func (m *machine) abandon() error {
	if m.qemu != nil && m.qemu.Process != nil {
		_ = m.qemu.Process.Kill()
		_ = m.qemu.Wait()
	}
	_, _, err := m.disk.cut(func() bool { return false })
	return errors.Join(err, os.RemoveAll(m.sockets))
}
