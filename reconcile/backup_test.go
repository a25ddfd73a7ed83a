package reconcile

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"pinfold/reconcile/plan"
	"pinfold/state"
)

// overwrite changes bytes of a file in place, as a failing disk would.
func overwrite(t *testing.T, path, old, new string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	found := false
	for from := 0; ; found = true {
		at := bytes.Index(content[from:], []byte(old))
		if at < 0 {
			break
		}
		if _, err := f.WriteAt([]byte(new), int64(from+at)); err != nil {
			t.Fatal(err)
		}
		from += at + len(old)
	}
	if !found {
		t.Fatalf("%q is not in %s", old, path)
	}
}

func backupsIn(t *testing.T, stateDir string) (paths []string) {
	t.Helper()
	all, err := state.Backups(stateDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		paths = append(paths, b.Path)
	}
	return paths
}

func TestVerifyAndBackupThroughTheSocket(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	c, e, _, _ := l.serve()
	l.apply(e, plan.Options{})
	ctx := context.Background()

	got, err := c.Verify(ctx)
	if err != nil || !got.Sound || got.Documents[state.Sandboxes] != 2 || got.Lineage != e.store.Lineage() || got.Backup != nil || got.Advice != "" {
		t.Fatalf("%+v, %v", got, err)
	}
	if want, err := e.Verify(ctx); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("through the socket %+v, without it %+v, %v", got, want, err)
	}

	own, err := c.Backup(ctx, BackupRequest{})
	if err != nil || !slices.Equal(backupsIn(t, l.state), []string{own.Path}) || own.Documents[state.Sandboxes] != 2 {
		t.Fatalf("%+v, %v", own, err)
	}
	path := filepath.Join(t.TempDir(), "b.db")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if res, err := c.Backup(ctx, BackupRequest{Path: path, File: f}); err != nil || res.Path != path || res.Size == 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	if v, err := Verify(ctx, OpenOptions{}, path); err != nil || !v.Sound || v.Serial != own.Serial || v.Backup != nil {
		t.Errorf("the file: %+v, %v", v, err)
	}
	_, err = c.Backup(ctx, BackupRequest{Path: path})
	l.refused(err, Invalid, "came with 0 files")
	if v, err := c.Verify(ctx); err != nil || v.Backup == nil || *v.Backup != own.Path {
		t.Errorf("the newest backup is %v, %v", v, err)
	}

	// What somebody does to the file under the agent is told, with the way back.
	overwrite(t, e.store.Path(), `{"address":"network.n"`, `{"address":"network.m"`)
	v, err := c.Verify(ctx)
	if err != nil || v.Sound || !slices.Equal(v.Problems, []string{`networks "network.n": its checksum does not match`}) {
		t.Errorf("damaged: %+v, %v", v, err)
	}
	if !strings.HasPrefix(v.Advice, "stop the agent first, then\n'pinfold state rebuild' ") || !strings.Contains(v.Advice, "\n'pinfold state restore "+own.Path+"' goes back to ") {
		t.Errorf("the advice is %q", v.Advice)
	}
	_, err = c.Backup(ctx, BackupRequest{})
	l.refused(err, Internal, "network.n")
	if err := os.Truncate(e.store.Path(), 0); err != nil {
		t.Fatal(err)
	}
	if v, err := c.Verify(ctx); err != nil || v.Sound || v.Problems[0] != "it is empty" {
		t.Errorf("emptied: %+v, %v", v, err)
	}
	for what, do := range map[string]func() error{
		"list": func() error { _, err := c.List(ctx); return err },
		"act":  func() error { _, err := c.Act(ctx, ActRequest{Verb: "stop", Address: "sandbox.a"}); return err },
		"gc":   func() error { _, err := c.GC(ctx, GCRequest{DryRun: true}); return err },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "to 0 while it was open") || !strings.Contains(err.Error(), own.Path) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if st, err := c.Status(ctx); err != nil || st.StateDir != l.state {
		t.Errorf("status: %+v, %v", st, err)
	}
}

// A document whose checksum is right is told of when it is not what it should be.
func TestVerifyReadsEachDocumentAsWhatItIs(t *testing.T) {
	dir := t.TempDir()
	s, err := state.Open(context.Background(), state.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	buckets := []string{state.Blocks, state.Ended, state.History, state.Images, state.Journal, state.Networks, state.Outputs, state.Sandboxes, state.Volumes}
	err = s.Update(func(tx state.Tx) error {
		for _, b := range buckets {
			if err := tx.Put(b, "x", []byte(`{"half`)); err != nil {
				return err
			}
		}
		return tx.Put(state.Sandboxes, "y", []byte(`{"block":"none"}`))
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Verify(documentCheck())
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(r.Problems, "\n")
	for _, b := range buckets {
		if !strings.Contains(text, b+` "x": `) {
			t.Errorf("nothing is said of %s in\n%s", b, text)
		}
	}
	if !strings.Contains(text, `sandboxes "y": there is no block "none"`) || len(r.Problems) != len(buckets)+1 {
		t.Errorf("%q", r.Problems)
	}
}

// An agent that stays makes each day's backup, complains where it cannot, and goes
// on trying.
func TestAgentKeepsBackups(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	var said bytes.Buffer
	l.log = hclog.New(&hclog.LoggerOptions{Output: &said})
	e := l.open("agent")
	l.apply(e, plan.Options{})
	blocked := filepath.Join(l.state, "backups")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() { e.keepBackups(ctx, time.Millisecond); close(over) }()
	eventually(t, "it complains twice", func() bool {
		e.complaints.mu.Lock()
		defer e.complaints.mu.Unlock()
		return e.complaints.last["state"].times > 1
	})
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there is a backup", func() bool { return len(backupsIn(t, l.state)) == 1 })
	cancel()
	<-over
	for _, want := range []string{"[ERROR] daily backup: address=state error=\"no backup of the state was made", "[INFO]  backup made"} {
		if strings.Count(said.String(), want) != 1 {
			t.Errorf("%q is not said once:\n%s", want, said.String())
		}
	}
	if v, err := Verify(ctx, OpenOptions{}, backupsIn(t, l.state)[0]); err != nil || !v.Sound || v.Documents[state.Sandboxes] != 2 {
		t.Errorf("%+v, %v", v, err)
	}
	l.end(e)
}

// Nobody restores under an agent or a command, and after it the engine knows what
// the backup did.
func TestRestore(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	c, e, runDir, stop := l.serve()
	l.apply(e, plan.Options{})
	ctx := context.Background()
	backup, err := c.Backup(ctx, BackupRequest{})
	if err != nil {
		t.Fatal(err)
	}
	pid := *l.view(e, "sandbox.a").PID
	o := OpenOptions{StateDir: l.state, RunDir: runDir, Verb: "state restore", LockWait: NoLockWait}
	_, err = Restore(ctx, o, RestoreRequest{File: backup.Path})
	l.refused(err, Locked, "stop it, restore, and start it again")
	stop()
	_, err = Restore(ctx, o, RestoreRequest{File: backup.Path}) // the engine is open still
	l.refused(err, Locked, "is in use by pid")
	if _, err := e.Act(ctx, ActRequest{Verb: "resume", Address: "sandbox.b"}); err != nil {
		t.Fatal(err)
	}
	path := e.store.Path()
	l.close(e)

	if err := os.Truncate(path, 5000); err != nil {
		t.Fatal(err)
	}
	// Two that came since, and what is no instance.
	for _, name := range []string{"0123456789ab", "ba9876543210", "other"} {
		if err := os.MkdirAll(filepath.Join(l.state, "instances", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(l.state, "lineage"), []byte(backup.Lineage), 0o600); err != nil {
		t.Fatal(err)
	}
	would, err := Restore(ctx, o, RestoreRequest{File: backup.Path, DryRun: true})
	if err != nil || would.Aside != nil || would.BackupAt == nil || time.Since(*would.BackupAt) > time.Minute || !slices.Equal(would.Unrecorded, []string{"0123456789ab", "ba9876543210"}) {
		t.Fatalf("%+v, %v", would, err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Size() != 5000 {
		t.Errorf("a dry run left %v, %v", fi, err)
	}
	res, err := Restore(ctx, o, RestoreRequest{File: backup.Path})
	if err := os.RemoveAll(filepath.Join(l.state, "instances")); err != nil {
		t.Fatal(err)
	}
	if err == nil && !slices.Equal(res.Unrecorded, would.Unrecorded) {
		t.Errorf("without a record are %q", res.Unrecorded)
	}
	if err != nil || res.Serial <= backup.Serial || res.Aside == nil || res.Lineage != backup.Lineage || res.Path != path {
		t.Fatalf("%+v, %v", res, err)
	}
	if fi, err := os.Stat(*res.Aside); err != nil || fi.Size() != 5000 {
		t.Errorf("aside is %v, %v", fi, err)
	}
	if v, err := Verify(ctx, o, ""); err != nil || !v.Sound || v.Serial != res.Serial {
		t.Errorf("%+v, %v", v, err)
	}
	e = l.open("apply")
	events, err := e.Events(ctx, EventsRequest{Types: []string{"restored"}})
	if err != nil || len(events.Events) != 2 || events.Events[0].Address != "sandbox.a" || events.Events[0].Instance == "" || !strings.Contains(events.Events[0].Message, backup.Path) {
		t.Errorf("%+v, %v", events, err)
	}
	l.apply(e, plan.Options{}) // b was resumed since
	l.nothingToDo(e)
	if now := *l.view(e, "sandbox.a").PID; now != pid {
		t.Errorf("sandbox.a had pid %d and has %d", pid, now)
	}
	l.end(e)
}

// What one lineage made on the host is never left to the state of another.
func TestRestoreOfAnotherLineage(t *testing.T) {
	l := &lab{t: t}
	ctx := context.Background()
	of := func(dir string) string {
		s, err := state.Open(ctx, state.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Backup()
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		return r.Path
	}
	foreign := of(t.TempDir())
	dir := t.TempDir()
	o := OpenOptions{StateDir: dir, RunDir: t.TempDir(), Verb: "state restore"}
	if err := os.WriteFile(filepath.Join(dir, "lineage"), []byte("0123-4567\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	instance := filepath.Join(dir, "instances", "0123456789ab")
	if err := os.MkdirAll(instance, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, force := range []bool{false, true} {
		_, err := Restore(ctx, o, RestoreRequest{File: foreign, Force: force})
		l.refused(err, Invalid, "instances or volumes of lineage 0123-4567")
	}
	if err := os.Remove(instance); err != nil {
		t.Fatal(err)
	}
	_, err := Restore(ctx, o, RestoreRequest{File: foreign})
	l.refused(err, Internal, "-force puts it there all the same")
	if res, err := Restore(ctx, o, RestoreRequest{File: foreign, Force: true}); err != nil || res.Aside != nil {
		t.Errorf("%+v, %v", res, err)
	}
	_, err = Verify(ctx, OpenOptions{StateDir: t.TempDir(), RunDir: t.TempDir(), Verb: "state verify"}, "")
	l.refused(err, Internal, "no state yet")
}

// A copy whose name tells no instant is as of the last event in it; one that tells of
// nothing is of no known instant.
func TestInstantOfABackup(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s, err := state.Open(ctx, state.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	last := time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)
	for _, at := range []*time.Time{nil, &last} {
		if at != nil {
			err := s.Update(func(tx state.Tx) error {
				_, err := tx.Append(state.History, []byte(`{"at":"2026-12-01T08:00:00Z","type":"create"}`))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		f, err := os.Create(filepath.Join(t.TempDir(), "mine.db"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.BackupTo(f, f.Name()); err != nil {
			t.Fatal(err)
		}
		f.Close()
		res, err := Restore(ctx, OpenOptions{StateDir: t.TempDir(), RunDir: t.TempDir()}, RestoreRequest{File: f.Name(), DryRun: true})
		if err != nil || !reflect.DeepEqual(res.BackupAt, at) || res.Unrecorded == nil {
			t.Errorf("%+v, %v", res, err)
		}
	}
}
