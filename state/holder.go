package state

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// state.holder lists who has state.db open: a writer, or several readers. It only
// gives a waiting process words to say; the flock alone decides. So whoever
// cannot write it (full disk, read-only file system) goes on without.
const holderName = "state.holder"

// entry is a Holder with what tells its process from a later one of that PID.
type entry struct {
	Holder
	Start uint64 `json:"start"` // clock ticks since boot, /proc/PID/stat field 22
	Boot  string `json:"boot"`  // /proc/sys/kernel/random/boot_id
	Open  string `json:"open"`  // tells apart two opens of one process
}

// announcement is our own entry, while it stands.
type announcement struct {
	dir  string
	open string
}

// announce notes this process as a holder.
func announce(dir, verb string) announcement {
	pid := os.Getpid()
	start, _ := startTime(pid)
	e := entry{
		Holder: Holder{PID: pid, Verb: verb, Since: time.Now().UTC()},
		Start:  start, Boot: bootID(), Open: newUUID(),
	}
	_ = changeHolders(dir, func(all []entry) []entry { return append(all, e) })
	return announcement{dir, e.Open}
}

// withdraw takes our entry back, and the file with the last one.
func (a announcement) withdraw() {
	_ = changeHolders(a.dir, func(all []entry) []entry {
		return slices.DeleteFunc(all, func(e entry) bool { return e.Open == a.open })
	})
}

// changeHolders rewrites the list atomically, without entries of dead processes.
func changeHolders(dir string, change func([]entry) []entry) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer release(d)
	lock := lockWait{path: filepath.Join(dir, holderName), dir: dir, started: time.Now()}
	if err := lock.acquireDir(context.Background(), d); err != nil {
		return err
	}
	all := change(slices.DeleteFunc(readHolders(dir), func(e entry) bool { return !e.alive() }))
	path := filepath.Join(dir, holderName)
	if len(all) == 0 {
		return os.Remove(path)
	}
	doc, err := json.Marshal(all)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", doc, 0o600); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	return os.Rename(path+".new", path)
}

// readHolders returns the list, empty when it is absent or makes no sense.
func readHolders(dir string) []entry {
	doc, err := os.ReadFile(filepath.Join(dir, holderName))
	if err != nil {
		return nil
	}
	var all []entry
	if json.Unmarshal(doc, &all) != nil {
		return nil
	}
	return all
}

// whoHolds names a holder that lives, else the last one noted, as gone, else none.
func whoHolds(dir string) (h Holder, gone bool) {
	all := readHolders(dir)
	for _, e := range all {
		if e.alive() {
			return e.Holder, false
		}
	}
	if len(all) == 0 {
		return Holder{}, false
	}
	return all[len(all)-1].Holder, true
}

func (e entry) alive() bool {
	start, ok := startTime(e.PID)
	return ok && start == e.Start && e.Boot == bootID()
}

// startTime returns when the process started, in clock ticks since boot; false
// when there is none, or a zombie, which holds no files. See proc_pid_stat(5).
func startTime(pid int) (ticks uint64, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// Field 2, the name, is in parentheses and may hold any byte; fields counts from 3.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 || bytes.ContainsAny(fields[0], "ZXx") {
		return 0, false
	}
	ticks, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return ticks, err == nil
}

// bootID is the kernel's name for this boot: start times count from it.
var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(id))
})

// Holders are the processes that live and have noted themselves as having state.db of
// the directory open. Each is told from a later process of its PID.
func Holders(dir string) (all []Holder) {
	for _, e := range readHolders(dir) {
		if e.alive() {
			all = append(all, e.Holder)
		}
	}
	return all
}
