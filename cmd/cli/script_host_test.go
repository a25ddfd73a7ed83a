package cli

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// foreign is what a script made on the host that is not pinfold's; undone last,
// after pinfold's own, which may lie on it.
type foreign struct{ undo []func() error }

var foreignKey = new(int)

func (f *foreign) end(log func(...any)) {
	for i := len(f.undo) - 1; i >= 0; i-- {
		if err := f.undo[i](); err != nil {
			log("STILL on the host: ", err)
		}
	}
	f.undo = nil
}

func made(ts *testscript.TestScript, undo func() error) {
	f := ts.Value(foreignKey).(*foreign)
	f.undo = append(f.undo, undo)
}

// listen NAME: another program listens at a port of 127.0.0.1; its number is in
// $NAME.
func listen(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: listen NAME")
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	ts.Check(err)
	made(ts, l.Close)
	ts.Setenv(args[0], strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
}

// link NAME: another program's link has an address range; it is in $NAME. The
// ranges are for documentation (RFC 5737), so no host has them.
func link(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: link NAME")
	}
	n := scriptNumber.Add(1)
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("pft%d-%d", os.Getpid()%100000, n)}}
	ts.Check(netlink.LinkAdd(bridge))
	made(ts, func() error { return netlink.LinkDel(bridge) })
	from := n % 8 * 32
	address, err := netlink.ParseAddr(fmt.Sprintf("198.51.100.%d/27", from+1))
	ts.Check(err)
	ts.Check(netlink.AddrAdd(bridge, address))
	ts.Check(netlink.LinkSetUp(bridge))
	ts.Setenv(args[0], fmt.Sprintf("198.51.100.%d/27", from))
}

// tmpfs DIR SIZE: mounts a file system of SIZE at DIR, which is made.
func tmpfs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: tmpfs DIR SIZE")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+args[1]))
	made(ts, func() error { return unix.Unmount(dir, 0) })
}

// nobody N COMMAND...: runs it as user nobody, who can read the configuration, and
// checks its exit code.
func nobody(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: nobody N COMMAND [ARGUMENT]...")
	}
	program, err := lookPath(ts, args[1])
	ts.Check(err)
	// The directories of a test's files and of its program are root's alone.
	for _, path := range []string{program, ts.MkAbs(".")} {
		for dir := filepath.Dir(path); strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
			ts.Check(os.Chmod(dir, 0o755))
		}
	}
	as := []string{args[0], "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program}
	exitCode(ts, false, append(as, args[2:]...))
}
