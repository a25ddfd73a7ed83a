package plan

import (
	"slices"
	"strings"
	"time"

	"pinfold/config"
)

// Deposed is an instance beside the sandbox's own that is to go, with what is
// reserved for it alone until it is gone: one that create_before_destroy replaced,
// or a replacement that is not ready, or did not become so. It is no survivor: the
// sandbox never goes on with it.
type Deposed struct {
	Instance Instance        `json:"instance"`
	IDs      IDRange         `json:"ids,omitzero"`
	Net      *Net            `json:"net,omitempty"`
	Ports    map[string]Port `json:"ports,omitempty"`
	// Retry paces its removal.
	Retry Retry `json:"retry,omitzero"`
}

// Depose makes the sandbox's instance a deposed one, which keeps what is reserved;
// the sandbox has neither then.
func (s *Sandbox) Depose() {
	s.Deposed = append(slices.Clone(s.Deposed), Deposed{Instance: *s.Instance, IDs: s.IDs, Net: s.Net, Ports: s.Ports})
	s.Instance, s.IDs, s.Net, s.Ports = nil, IDRange{}, nil, nil
}

// DeposedAt finds a deposed instance by its id; -1: there is none.
func (s *Sandbox) DeposedAt(id string) int {
	return slices.IndexFunc(s.Deposed, func(d Deposed) bool { return d.Instance.ID == id })
}

// replacedBy is the Reason of the removal of an instance that is deposed in the same
// plan: a part of its replacement.
const replacedBy = "replaced"

// deposedBy is the Reason of the removal of one that was deposed before.
const deposedBy = "deposed"

// Past lists the instances beside its own that the record speaks of: all of them are
// to go, but for one whose files are still to be carried over.
func (s *Sandbox) Past() []string {
	ids := slices.Clone(s.Doomed)
	if s.CarryFrom != "" {
		ids = append(ids, s.CarryFrom)
	}
	for _, d := range s.Deposed {
		ids = append(ids, d.Instance.ID)
	}
	return ids
}

// deposedOn reports whether a deposed instance has its place on network a.
func (s *Sandbox) deposedOn(a string) bool {
	return slices.ContainsFunc(s.Deposed, func(d Deposed) bool { return d.Net != nil && d.Net.Network == a })
}

// cannotComeFirst refuses create_before_destroy where two instances cannot be there
// at a time, and reports whether it did. The files say so by themselves; what is left
// is what ignore_changes keeps as recorded.
func (w *walk) cannotComeFirst(spec *config.Sandbox, d *config.Resource[config.Sandbox]) bool {
	if d == nil || !d.Lifecycle.CreateBeforeDestroy {
		return false
	}
	no := config.CanComeFirst(spec)
	if len(no) == 0 {
		return false
	}
	w.fail(d.Address, "create_before_destroy of "+d.Address+" is not possible with "+strings.Join(no, ", "),
		config.WayToComeFirst, source(d, "lifecycle.create_before_destroy"))
	return true
}

// comesFirst reports whether a replacement is to be ready before the old instance
// goes: where the old one has a process, and the new one is to have one. Without
// either nobody would be served meanwhile.
func (o *one) comesFirst(mode string) bool {
	return lifecycle(o.d, o.rec.Lifecycle).CreateBeforeDestroy && o.st.Phase.live() && (mode == "running" || mode == "paused") &&
		len(config.CanComeFirst(o.spec)) == 0
}

// staysUp names a sandbox on network a whose old instance would have to stay there
// while the network is made anew: there is no room for both. Empty: there is none.
func (w *walk) staysUp(a string) string {
	for _, user := range slices.Sorted(mapKeys(w.in.Records.Sandboxes)) {
		rec := w.in.Records.Sandboxes[user]
		if !rec.uses(a) || w.goes(user) || !lifecycle(w.sandboxes[user], rec.Lifecycle).CreateBeforeDestroy {
			continue
		}
		if o := w.looks[user]; o != nil && o.st.Phase.live() {
			return user
		}
	}
	return ""
}

// refuseUnder refuses to take network a away under a sandbox that is to be up until
// its replacement is ready.
func (w *walk) refuseUnder(a, user, what string, at config.Position) {
	w.fail(a, a+" cannot be "+what+" under "+user,
		user+" is on it and has create_before_destroy: its old instance stays until the new one is ready, and the old range stays in use as long. "+
			"Declare a network of another name and range beside it, move "+user+" there and apply, then remove "+a+"; or set create_before_destroy to false.", at)
}

// retire plans the removal of deposed instances: of those that earlier steps left,
// with the sandbox's own changes, and of those that this plan deposes, which goes
// after all that is to turn to the new instance.
func (w *walk) retire() {
	for a, rec := range w.in.Records.Sandboxes {
		if len(rec.Deposed) == 0 || !w.covered(a) {
			continue
		}
		if w.leaves(a) {
			for i := range w.steps[a] {
				if c := &w.steps[a][i]; c.endsRecord() {
					c.Notes = append(c.Notes, "goes with it: "+deposedNames(rec))
				}
			}
			continue
		}
		for i := range rec.Deposed {
			d := &rec.Deposed[i]
			if w.waits(d.Retry) {
				w.note(a + ": its deposed instance " + d.Instance.ID + " could not be removed (" + d.Retry.Error + "); tried again at " + stamp(d.Retry.NextAt))
				w.wake(d.Retry.NextAt)
				continue
			}
			w.retired[a] = append(w.retired[a], Change{Address: a, Kind: "sandbox", Action: ActDelete, Origin: FromHost, Deposed: d.Instance.ID,
				Cause: "left over from a replacement", Consequence: "destroyed: the sandbox itself stays", Reason: deposedBy})
		}
	}
}

func deposedNames(rec *Sandbox) string {
	var ids []string
	for _, d := range rec.Deposed {
		ids = append(ids, "deposed object "+d.Instance.ID)
	}
	return strings.Join(ids, ", ")
}

// successors are those of the list whose old instance goes once all that refers to
// them has turned to the new one: for each the changing sandboxes that do, and the
// removal itself.
func (w *walk) successors(made []string) (retiring map[string]Change, dependants map[string][]string) {
	retiring, dependants = map[string]Change{}, map[string][]string{}
	for _, a := range made {
		for _, c := range w.steps[a] {
			if c.CreateFirst {
				retiring[a] = Change{Address: a, Kind: "sandbox", Action: ActDelete, Origin: c.Origin, Deposed: c.Instance,
					Cause: c.Cause, Consequence: "destroyed: its replacement is ready", Reason: replacedBy}
			}
		}
	}
	if len(retiring) == 0 {
		return retiring, dependants
	}
	for _, a := range made {
		for _, dep := range w.needs(a) {
			if _, goes := retiring[dep]; goes && dep != a {
				dependants[dep] = append(dependants[dep], a)
			}
		}
	}
	return retiring, dependants
}

// addRetired puts the removals of instances that were deposed before behind the
// sandbox's own changes.
func (w *walk) addRetired() {
	for a, cs := range w.retired {
		w.steps[a] = append(w.steps[a], cs...)
	}
}

// inFront takes off the front of a's changes what must be over before networks are
// taken away: that it is taken down for it, and that deposed instances on one of
// those networks go.
func (w *walk) inFront(a string) []Change {
	n := w.steps[a]
	down := len(n) > 1 && n[0].Reason == takenDown
	rec := w.in.Records.Sandboxes[a]
	onEarly := rec != nil && slices.ContainsFunc(rec.Deposed, func(d Deposed) bool { return d.Net != nil && w.early[d.Net.Network] })
	if !down && !onEarly {
		return nil
	}
	var front, rest []Change
	for i, c := range n {
		if down && i == 0 || onEarly && c.Reason == deposedBy && c.Deposed != "" {
			front = append(front, c)
		} else {
			rest = append(rest, c)
		}
	}
	w.steps[a] = rest
	return front
}

// portsWanted are the fixed host ports that the sandboxes of the list are to have.
func (w *walk) portsWanted(made []string) map[portKey][]string {
	wanted := map[portKey][]string{}
	for _, a := range made {
		if d := w.sandboxes[a]; d != nil {
			for _, p := range d.Spec.Ports {
				if p.Host != 0 {
					k := portKey{p.Address, p.Protocol, p.Host}
					wanted[k] = append(wanted[k], a)
				}
			}
		}
	}
	return wanted
}

// hands reports whether a gives up a fixed host port that somebody else wants. They
// need not wait then for all that turns to a's new instance: its old one goes at once.
func (w *walk) hands(a string, wanted map[portKey][]string) bool {
	for _, p := range w.in.Records.Sandboxes[a].Spec.Ports {
		k := portKey{p.Address, p.Protocol, p.Host}
		if slices.Contains(w.released[k], a) && len(wanted[k]) > 0 {
			return true
		}
	}
	return false
}

// ReadyWithin bounds the wait for a replacement: lifetime.start_timeout.
func ReadyWithin(spec *config.Sandbox) time.Duration {
	if d := time.Duration(spec.Lifetime.StartTimeout); d > 0 {
		return d
	}
	return startTimeout
}
