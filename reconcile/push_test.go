package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pinfold/reconcile/plan"
	"pinfold/state"
)

// again is a document as it comes back from a file.
func again(t *testing.T, d *StateDocument) *StateDocument {
	t.Helper()
	b, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	back := new(StateDocument)
	if err := json.Unmarshal(b, back); err != nil {
		t.Fatal(err)
	}
	return back
}

// What was pulled is, pushed back, the state that it was, and the host stays as it is.
func TestPullAndPush(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	ctx := context.Background()
	c, e, runDir, stop := l.serve()
	l.apply(e, plan.Options{})
	pulled, err := c.Pull(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if pulled.Lineage != e.store.Lineage() || pulled.Serial != e.snapshot().Serial || pulled.Schema != state.Schema || len(pulled.Documents[state.Sandboxes]) != 2 || len(pulled.History) == 0 || pulled.Meta["config_dir"] == "" {
		t.Fatalf("pulled %+v", pulled)
	}
	doc := again(t, pulled)
	pid := *l.view(e, "sandbox.a").PID
	o := OpenOptions{StateDir: l.state, RunDir: runDir, Verb: "state push", LockWait: NoLockWait}
	push := func(r PushRequest) (*PushResult, error) {
		r.Name = "s.json"
		return Push(ctx, o, r)
	}

	// Nobody pushes under an agent or a command.
	_, err = push(PushRequest{Document: doc})
	l.refused(err, Locked, "stop it, push, and start it again")
	stop()
	_, err = push(PushRequest{Document: doc})
	l.refused(err, Locked, "is in use by pid")

	// A change that came since is not forgotten by mistake.
	l.act(e, "stop", "sandbox.a")
	l.close(e)
	_, err = push(PushRequest{Document: doc})
	l.refused(err, Internal, "the state has changed since")
	if err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("it says %v", err)
	}
	would, err := push(PushRequest{Document: doc, Force: true, DryRun: true})
	if err != nil || would.Aside != nil || would.Serial <= doc.Serial {
		t.Fatalf("%+v, %v", would, err)
	}
	e = l.open("apply")
	if h := l.view(e, "sandbox.a").Hold; h == nil {
		t.Error("a dry run changed the state")
	}
	l.act(e, "start", "sandbox.a")
	pid2 := *l.view(e, "sandbox.a").PID
	current, err := e.Pull(ctx)
	if err != nil {
		t.Fatal(err)
	}
	l.close(e)

	// By force it is; the process that runs now is found.
	res, err := push(PushRequest{Document: doc, Force: true})
	if err != nil || res.Aside == nil || res.Lineage != doc.Lineage || res.Serial <= current.Serial || res.Documents[state.Sandboxes] != 2 {
		t.Fatalf("%+v, %v", res, err)
	}
	e = l.open("apply")
	if now := *l.view(e, "sandbox.a").PID; now != pid2 || pid2 == pid {
		t.Errorf("the process was %d, then %d and is %d", pid, pid2, now)
	}
	events, err := e.Events(ctx, EventsRequest{Types: []string{"restored"}})
	if err != nil || len(events.Events) != 2 || !strings.Contains(events.Events[0].Message, "s.json") {
		t.Errorf("%+v, %v", events, err)
	}
	after, err := e.Pull(ctx)
	if err != nil || !reflect.DeepEqual(after.Documents[state.Networks], doc.Documents[state.Networks]) || !reflect.DeepEqual(after.Meta, doc.Meta) {
		t.Errorf("%+v, %v", after, err)
	}
	l.apply(e, plan.Options{})
	l.nothingToDo(e)
	l.close(e)

	// What was there can be put back.
	if _, err := Restore(ctx, OpenOptions{StateDir: l.state, RunDir: runDir}, RestoreRequest{File: *res.Aside}); err != nil {
		t.Fatal(err)
	}
	e = l.open("apply")
	l.end(e)
}

func members(d *StateDocument, bucket, key string) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(d.Documents[bucket][key], &m); err != nil {
		panic(err)
	}
	return m
}

func put(d *StateDocument, bucket, key string, m map[string]json.RawMessage) {
	doc, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	d.Documents[bucket][key] = doc
}

// edit gives a document's member another value, as somebody with an editor does.
func edit(d *StateDocument, bucket, key, member, value string) {
	m := members(d, bucket, key)
	m[member] = json.RawMessage(value)
	put(d, bucket, key, m)
}

func editInstance(d *StateDocument, member, value string) {
	var i map[string]json.RawMessage
	if err := json.Unmarshal(members(d, state.Sandboxes, "sandbox.b")["instance"], &i); err != nil {
		panic(err)
	}
	i[member] = json.RawMessage(value)
	doc, err := json.Marshal(i)
	if err != nil {
		panic(err)
	}
	edit(d, state.Sandboxes, "sandbox.b", "instance", string(doc))
}

func copyMember(d *StateDocument, member, from, to string) {
	edit(d, state.Sandboxes, to, member, string(members(d, state.Sandboxes, from)[member]))
}

func moveDocument(d *StateDocument, from, to string) {
	edit(d, state.Sandboxes, from, "address", `"`+to+`"`)
	d.Documents[state.Sandboxes][to] = d.Documents[state.Sandboxes][from]
	delete(d.Documents[state.Sandboxes], from)
}

// What is no state of this pinfold is refused with the reason, and nothing changes.
func TestPushRefuses(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	ctx := context.Background()
	e := l.open("apply")
	l.apply(e, plan.Options{})
	whole, err := e.Pull(ctx)
	if err != nil {
		t.Fatal(err)
	}
	l.close(e)
	path := filepath.Join(l.state, "state.db")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for words, change := range map[string]func(*StateDocument){
		"it is of format":                func(d *StateDocument) { d.FormatVersion = "2" },
		"it is of a state with schema":   func(d *StateDocument) { d.Schema++ },
		"in the middle of a step":        func(d *StateDocument) { d.Journal = []json.RawMessage{[]byte("{}")} },
		`that is not known, "secrets"`:   func(d *StateDocument) { d.Documents["secrets"] = nil },
		`a key that is not known, "x"`:   func(d *StateDocument) { d.Meta["x"] = "y" },
		`networks "network.n" cannot be`: func(d *StateDocument) { d.Documents[state.Networks]["network.n"] = []byte(`{"cidr": 3}`) },
		"there is no block":              func(d *StateDocument) { clear(d.Documents[state.Blocks]) },
		"event 1 of its history":         func(d *StateDocument) { d.History[0] = []byte(`[]`) },
		"is no UUID":                     func(d *StateDocument) { d.Lineage = "x" },
		"that is of lineage":             func(d *StateDocument) { d.Lineage = "01234567-0123-0123-0123-0123456789ab" },
		"this " + "0":                    func(d *StateDocument) { d.Serial = 0 },
		"is none that a state has":       func(d *StateDocument) { d.Serial = 1<<64 - 1 },
		"what it says of moved blocks":   func(d *StateDocument) { d.Meta[metaCycles] = "a" },

		// Each of these can be read, but does not fit with the rest.
		"its uid ":                    func(d *StateDocument) { copyMember(d, "uid", "sandbox.a", "sandbox.b") },
		"its id ":                     func(d *StateDocument) { copyMember(d, "instance", "sandbox.a", "sandbox.b") },
		"sandbox.a has its id range":  func(d *StateDocument) { copyMember(d, "ids", "sandbox.a", "sandbox.b") },
		"sandbox.a has its address":   func(d *StateDocument) { copyMember(d, "net", "sandbox.a", "sandbox.b") },
		"sandbox.a has the host port": func(d *StateDocument) { copyMember(d, "ports", "sandbox.a", "sandbox.b") },
		"no id range that":            func(d *StateDocument) { edit(d, state.Sandboxes, "sandbox.b", "ids", `{"base": 0, "size": 65536}`) },
		"its address is sandbox.c":    func(d *StateDocument) { edit(d, state.Sandboxes, "sandbox.b", "address", `"sandbox.c"`) },
		"has no uid":                  func(d *StateDocument) { edit(d, state.Sandboxes, "sandbox.b", "uid", `""`) },
		`"../../../etc" is no id`:     func(d *StateDocument) { edit(d, state.Volumes, "volume.data", "id", `"../../../etc"`) },
		`"../instances" is no id`:     func(d *StateDocument) { edit(d, state.Sandboxes, "sandbox.a", "claims", `{"work": "../instances"}`) },
		`"eth0" is no id`:             func(d *StateDocument) { edit(d, state.Networks, "network.n", "id", `"eth0"`) },
		"do not go together":          func(d *StateDocument) { edit(d, state.Networks, "network.n", "gateway", `"10.1.2.3"`) },
		"cannot be \"zzz\"":           func(d *StateDocument) { editInstance(d, "phase", `"zzz"`) },
		"cannot have pid -1":          func(d *StateDocument) { editInstance(d, "pid", `-1`) },
		"no address of what is in":    func(d *StateDocument) { moveDocument(d, "sandbox.b", "network.b") },
		"is its own and a deposed one": func(d *StateDocument) {
			edit(d, state.Sandboxes, "sandbox.b", "deposed", `[{"instance": `+string(members(d, state.Sandboxes, "sandbox.b")["instance"])+`}]`)
		},
		"its range 10.": func(d *StateDocument) {
			second := members(d, state.Networks, "network.n")
			second["address"], second["id"] = []byte(`"network.o"`), []byte(`"00000000"`)
			put(d, state.Networks, "network.o", second)
		},
	} {
		d := again(t, whole)
		change(d)
		_, err := Push(ctx, OpenOptions{StateDir: l.state, RunDir: t.TempDir()}, PushRequest{Name: "s.json", Document: d})
		if err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("%s: %v", words, err)
		}
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != string(before) {
		t.Errorf("the state was changed: %v", err)
	}

	// Another lineage's, where this one's instances lie, not even by force.
	foreign := again(t, whole)
	foreign.Lineage = "01234567-0123-0123-0123-0123456789ab"
	if err := errors.Join(
		os.MkdirAll(filepath.Join(l.state, "instances", "0123456789ab"), 0o700),
		os.WriteFile(filepath.Join(l.state, "lineage"), []byte(whole.Lineage), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	_, err = Push(ctx, OpenOptions{StateDir: l.state, RunDir: t.TempDir()}, PushRequest{Name: "s.json", Document: foreign, Force: true})
	l.refused(err, Invalid, "which it would neither know nor own")

	// Into a state dir that has none it goes as it is.
	o := OpenOptions{StateDir: filepath.Join(t.TempDir(), "new"), RunDir: t.TempDir()}
	if res, err := Push(ctx, o, PushRequest{Name: "s.json", Document: whole}); err != nil || res.Aside != nil || res.Lineage != whole.Lineage {
		t.Errorf("%+v, %v", res, err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(l.state, "instances")), os.Remove(filepath.Join(l.state, "lineage"))); err != nil {
		t.Fatal(err)
	}
	l.end(l.open("apply"))
}
