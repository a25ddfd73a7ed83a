package reconcile

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/reconcile/seal"
	"pinfold/state"
)

// What is sensitive is sealed wherever it is written: in the documents of the state,
// the notes beside instances, and saved plans. In memory it is in clear, for that is
// where it is used; what leaves for people and programs goes through redact.go.

// purposes of what is sealed.
const (
	sealedSpec   = "spec."   // and the member's name
	sealedOutput = "output." // and the output's
	sealedPlan   = "plan"
)

var errNoBox = errors.New("there is nothing to seal it with")

// sensitiveMembers are the members of a spec that hold something sensitive.
func sensitiveMembers(paths []string) []string {
	var names []string
	for _, path := range paths {
		name := path
		if end := strings.IndexAny(path, ".["); end >= 0 {
			name = path[:end]
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// sealMembers takes out of a spec's members those that hold something sensitive.
func sealMembers(box *seal.Box, members map[string]json.RawMessage, sensitive []string) (map[string]string, error) {
	var sealed map[string]string
	for _, name := range sensitiveMembers(sensitive) {
		value, has := members[name]
		if !has {
			continue
		}
		if box == nil {
			return nil, errNoBox
		}
		text, err := box.Seal(value, sealedSpec+name)
		if err != nil {
			return nil, err
		}
		setLost(&sealed, name, text)
		delete(members, name)
	}
	return sealed, nil
}

// openMembers puts sealed members back. Those that cannot be opened, for the key is
// not there or they are damaged, are returned as they are; an error is one of the key
// file itself.
func openMembers(box *seal.Box, sealed map[string]string, into map[string]json.RawMessage) (lost map[string]string, err error) {
	for name, text := range sealed {
		if box == nil {
			setLost(&lost, name, text)
			continue
		}
		value, err := box.Open(text, sealedSpec+name)
		switch {
		case errors.Is(err, seal.ErrNoKey), errors.Is(err, seal.ErrDamaged):
			setLost(&lost, name, text)
		case err != nil:
			return nil, err
		default:
			into[name] = value
		}
	}
	return lost, nil
}

func setLost(m *map[string]string, name, sealed string) {
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[name] = sealed
}

// membersOf is where a sandbox's own members are put.
func membersOf(s *storedSandbox) map[string]json.RawMessage {
	if s.Spec == nil && len(s.Sealed) > 0 {
		s.Spec = map[string]json.RawMessage{}
	}
	return s.Spec
}

// legible refuses what needs values that cannot be read.
func legible(rec *plan.Sandbox) error {
	if len(rec.Unreadable) == 0 {
		return nil
	}
	names := strings.Join(slices.Sorted(maps.Keys(rec.Unreadable)), ", ")
	return &Error{Kind: Invalid, Message: rec.Address + " cannot be started: its recorded " + names + " cannot be read without the key that sealed it; put " + seal.FileName + " back into the state dir, or apply its configuration, which has the values"}
}

// storedOutput is the document of an output.
type storedOutput struct {
	config.Output
	Sealed string `json:"sealed,omitempty"` // the value of a sensitive one
}

// encodeOutputs makes the documents of outputs.
func encodeOutputs(docs *[]document, box *seal.Box, m map[string]*config.Output) error {
	stored := make(map[string]*storedOutput, len(m))
	for name, o := range m {
		if o == nil {
			stored[name] = nil
			continue
		}
		s := &storedOutput{Output: *o}
		if o.Sensitive && o.Value != nil {
			var err error
			if s.Sealed, err = box.Seal(o.Value, sealedOutput+o.Name); err != nil {
				return err
			}
			s.Value = nil
		}
		stored[name] = s
	}
	return encode(docs, state.Outputs, stored)
}

// decodeOutput reads one. A value that cannot be opened is not known.
func decodeOutput(box *seal.Box, doc []byte, o *config.Output) error {
	var s storedOutput
	if err := json.Unmarshal(doc, &s); err != nil {
		return err
	}
	*o = s.Output
	if s.Sealed == "" || box == nil {
		return nil
	}
	value, err := box.Open(s.Sealed, sealedOutput+o.Name)
	if errors.Is(err, seal.ErrNoKey) || errors.Is(err, seal.ErrDamaged) {
		return nil
	}
	o.Value = value
	return err
}
