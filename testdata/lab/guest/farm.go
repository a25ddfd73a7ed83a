package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pinfold/testdata/lab/wire"
)

//go:embed farm.hcl
var farmFiles []byte

// vars are the farm's input variables.
type vars struct {
	Due   map[string]due
	Churn []string
	Word  string
}

type due struct {
	At     time.Time `json:"at"`
	Policy string    `json:"policy"`
}

func (v vars) flags() []string {
	dues, err := json.Marshal(v.copy().Due)
	if err != nil {
		panic(err)
	}
	churn, err := json.Marshal(append([]string{}, v.Churn...)) // [] rather than null
	if err != nil {
		panic(err)
	}
	return []string{"-var", "due=" + string(dues), "-var", "churn=" + string(churn), "-var", "word=" + v.Word}
}

func (v vars) copy() vars {
	c := v
	c.Churn = slices.Clone(v.Churn)
	c.Due = map[string]due{}
	for k, d := range v.Due {
		c.Due[k] = d
	}
	return c
}

// farm is what the driver knows of what was asked of pinfold. Where a request is
// under way the outcome may be the one or the other: sure and next.
type farm struct {
	Sure, Next vars // what was applied, and what is being applied
}

// settled: nothing is being applied.
func (f farm) settled() bool { return fmt.Sprint(f.Sure) == fmt.Sprint(f.Next) }

// Notes by name.
const (
	noteFarm  = "farm"
	noteLost  = "lost/"    // by key: what to think of it when the power is cut
	noteVerb  = "verb/"    // by address: a wager
	noteCount = "count/"   // by address and file: the last number told
	noteEnd   = "expires/" // by address
	noteDone  = "done"     // when it ended
	noteAgain = "again"    // over, begun or unsure
)

// What is known of a sandbox that does not simply come back when it is lost.
const (
	alive  = "alive"
	gone   = "gone"
	unsure = "unsure" // it was being made again, or was about to be started again
)

// What is known of the sandbox that ends and is started again.
const (
	over  = "over"
	begun = "begun"
)

// position is what verbs move.
type position struct {
	Hold  string
	Until time.Time
}

// wager is a verb under way: it came to Will, or left everything as it Was.
type wager struct{ Was, Will position }

func lostAddress(key string) string { return fmt.Sprintf("sandbox.lost[%q]", key) }
func verbAddress(n int) string      { return fmt.Sprintf("sandbox.verb[%q]", fmt.Sprint(n)) }
func dueAddress(key string) string  { return fmt.Sprintf("sandbox.due[%q]", key) }
func churnAddress(k string) string  { return fmt.Sprintf("sandbox.churn[%q]", k) }

var lostKeys = []string{"recreate-fresh", "retain", "delete"}

const verbs = 2

// counted are the files in which workloads count, by address.
var counted = map[string][]string{
	"sandbox.claim":               {"/count", "/work/count"},
	"sandbox.shared":              {"/count", "/work/count"},
	"sandbox.lonely":              {"/count"},
	lostAddress("recreate-fresh"): {"/count", "/work/count"},
	lostAddress("retain"):         {"/count", "/work/count"},
	lostAddress("delete"):         {"/count", "/work/count"},
}

// recall reads a note.
func recall[T any](d *driver, name string) (value T, ok bool) {
	d.notesMu.Lock()
	defer d.notesMu.Unlock()
	text, ok := d.Notes[name]
	if !ok {
		return value, false
	}
	if err := json.Unmarshal(text, &value); err != nil {
		panic(fmt.Sprintf("note %s: %v", name, err))
	}
	return value, true
}

// note keeps a value where no power cut reaches it.
func (d *driver) note(name string, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	d.notesMu.Lock()
	defer d.notesMu.Unlock()
	d.Notes[name] = text
	d.word(wire.Word{Note: name, Value: text})
}

func (d *driver) forget(name string) {
	d.notesMu.Lock()
	defer d.notesMu.Unlock()
	delete(d.Notes, name)
	d.word(wire.Word{Note: name})
}

// apply applies the farm with these values.
func (d *driver) apply(v vars, more ...string) error {
	f, _ := recall[farm](d, noteFarm)
	f.Next = v.copy()
	d.note(noteFarm, f)
	args := append([]string{"apply", "-auto-approve", "-lock-timeout", "2m"}, v.flags()...)
	if _, err := pinfold(append(args, more...)...); err != nil {
		return err
	}
	f.Sure = v.copy()
	d.note(noteFarm, f)
	return nil
}

// nothingToDo: a plan with what was applied is empty.
func (d *driver) nothingToDo() error {
	f, _ := recall[farm](d, noteFarm)
	args := append([]string{"plan", "-detailed-exitcode", "-lock-timeout", "2m"}, f.Sure.flags()...)
	if out, err := pinfold(args...); err != nil {
		return fmt.Errorf("there is something to do: %w\n%s", err, out)
	}
	return nil
}

func writeFarm() error {
	if err := os.MkdirAll(farmDir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(farmDir, "main.hcl"), farmFiles, 0o644)
}

// read reads a file of a sandbox, which need not run. Of one that is lost or pending
// pinfold hands out nothing; what was in its layer is to be there all the same.
func read(s *sandbox, file string) ([]byte, error) {
	if s.Phase == "lost" || s.Phase == "pending" {
		layer, err := layerOf(s)
		if err != nil {
			return nil, err
		}
		return os.ReadFile(filepath.Join(layer, file))
	}
	to, err := os.MkdirTemp("", "read")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(to)
	copied := filepath.Join(to, "file")
	if _, err := pinfold("cp", s.Address+":"+file, copied); err != nil {
		return nil, err
	}
	return os.ReadFile(copied)
}

// layerOf finds the one writable layer of a sandbox in the state dir: its instance's,
// or, where that was not created in full, by what is written down beside each. A
// power cut may have damaged that of others.
func layerOf(s *sandbox) (string, error) {
	if s.InstanceID != nil {
		layer := filepath.Join(stateDir, "instances", *s.InstanceID, "upper")
		if _, err := os.Stat(layer); err == nil {
			return layer, nil
		}
	}
	records, err := filepath.Glob(filepath.Join(stateDir, "instances", "*", "instance.json"))
	if err != nil {
		return "", err
	}
	var layers []string
	for _, file := range records {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		var record struct {
			Instance struct{ Mark struct{ Address string } }
		}
		layer := filepath.Join(filepath.Dir(file), "upper")
		if _, err := os.Stat(layer); err == nil && json.Unmarshal(text, &record) == nil && record.Instance.Mark.Address == s.Address {
			layers = append(layers, layer)
		}
	}
	if len(layers) != 1 {
		return "", fmt.Errorf("%s has %d writable layers, not one: %v", s.Address, len(layers), layers)
	}
	return layers[0], nil
}

// starts are the boots in which the sandbox's process was started.
func starts(s *sandbox) ([]string, error) {
	text, err := read(s, startsFile)
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(text)), nil
}
