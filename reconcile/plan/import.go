package plan

import (
	"net/netip"
	"slices"

	"pinfold/config"
)

// Candidate is what the host has of an id that an import block names, and what was
// noted beside it.
type Candidate struct {
	Kind     string   // sandbox or volume
	Refused  string   // why it cannot be taken, in words; empty: it can
	Released bool     // it was given up before
	Sandbox  *Sandbox // its record as it was noted, under the address that it had then; nil for a volume
	// What it stands on, as it was noted.
	Network *Network
	Volumes []*Volume
	Image   *Image
}

// takeBack puts what the import blocks name into the records of the input.
func (r *readdressed) takeBack(in *Input) {
	if in.Options.Destroy {
		return
	}
	fresh := false // the maps of in.Records are this function's own
	for i := range in.Desired.Imports {
		m := &in.Desired.Imports[i]
		c, found := in.Imports[m.ID]
		if in.Records.Sandboxes[m.To] != nil || in.Records.Volumes[m.To] != nil { // done before
			if s := in.Records.Sandboxes[m.To]; s != nil && instanceOf(s) == m.ID && in.Observed.Instances[m.ID].Released {
				in.Observed.Instances = unreleased(in.Observed.Instances, m.ID)
				r.changes = append(r.changes, imported(&in.Records, m, m.To))
			} else if found && in.Records.Holder(m.ID) == "" {
				r.notes = append(r.notes, m.To+" is on record, so that the import of "+m.ID+" into it does nothing")
			}
			continue
		}
		refuse := func(why string) {
			r.refused = append(r.refused, diagnostic("error", m.To, "cannot import "+m.ID+" into "+m.To, why, m.Source))
		}
		on := in.Records.Holder(m.ID)
		switch {
		case on != "":
			refuse("It is on record already, as " + on + ". To give it another address, write a moved block.")
			continue
		case !found:
			refuse("Nothing on this host has this id and bears this state's mark. pinfold gc -dry-run lists what can be taken back; what pinfold did not make cannot be.")
			continue
		case c.Kind != KindOf(m.To):
			refuse("It is the id of a " + c.Kind + ".")
			continue
		case c.Refused != "":
			refuse(c.Refused)
			continue
		}
		if !fresh {
			in.Records, fresh = in.Records.copied(), true
		}
		brought, why := in.Records.admit(m.To, m.ID, &c)
		if why != "" {
			refuse(why)
			continue
		}
		for _, a := range brought {
			r.changes = append(r.changes, imported(&in.Records, m, a))
		}
		if s := in.Records.Sandboxes[m.To]; s != nil {
			in.Observed.Instances = unreleased(in.Observed.Instances, m.ID)
		}
	}
}

func imported(r *Records, m *config.Import, a string) Change {
	c := Change{Address: a, Kind: KindOf(a), Action: ActImport, Origin: FromFiles, Cause: "import of " + m.ID, Consequence: "imported"}
	if a != m.To {
		c.Cause, c.Consequence = "import of "+m.ID+", which stands on it", "imported with "+m.To
	}
	switch s := r.Sandboxes[a]; {
	case s != nil:
		c.Instance = m.ID
		c.Consequence += ", its process is not touched"
	case r.Volumes[a] != nil:
		c.Instance = r.Volumes[a].ID
	case r.Networks[a] != nil:
		c.Instance = r.Networks[a].ID
	}
	return c
}

// unreleased is the sight with one instance nobody's no more.
func unreleased(seen map[string]Seen, id string) map[string]Seen {
	s, there := seen[id]
	if !there || !s.Released {
		return seen
	}
	out := make(map[string]Seen, len(seen))
	for k, v := range seen {
		out[k] = v
	}
	s.Released = false
	out[id] = s
	return out
}

// copied is r with maps of its own.
func (r *Records) copied() Records {
	c := *r
	c.Sandboxes, c.Networks, c.Volumes = copyMap(r.Sandboxes), copyMap(r.Networks), copyMap(r.Volumes)
	c.Images, c.Ended = copyMap(r.Images), copyMap(r.Ended)
	return c
}

func copyMap[V any](m map[string]V) map[string]V {
	out := make(map[string]V, len(m)+1)
	for k, v := range m {
		out[k] = v
	}
	return out
}

// Holder is the address of the record that has the id of an instance or volume;
// empty: none.
func (r *Records) Holder(id string) string {
	for a, s := range r.Sandboxes {
		if instanceOf(s) == id || slices.Contains(s.Past(), id) {
			return a
		}
		for name, claim := range s.Claim {
			if claim == id {
				return a + ` (its volume "` + name + `")`
			}
		}
	}
	for a, v := range r.Volumes {
		if v.ID == id {
			return a
		}
	}
	return ""
}

// admit puts a candidate into r as the record of address to, with what it stands on
// where that is not on record, and lists what was put in. Not empty: why it cannot
// be, and then r is as it was. What it stands on and is on record by another name is
// what it stands on from now on.
func (r *Records) admit(to, id string, c *Candidate) (brought []string, why string) {
	if c.Kind == "volume" {
		r.Volumes[to] = &Volume{Address: to, ID: id, Made: true}
		return []string{to}, ""
	}
	names := map[string]string{} // of what it stands on, by the noted ones
	var network *Network
	var volumes []*Volume
	var image *Image
	if n := c.Network; n != nil {
		if names[n.Address], why = r.findNetwork(n); why != "" {
			return nil, why
		}
		if r.Networks[names[n.Address]] == nil {
			network = n
		}
	}
	for _, v := range c.Volumes {
		if names[v.Address], why = r.findVolume(v); why != "" {
			return nil, why
		}
		if r.Volumes[names[v.Address]] == nil {
			volumes = append(volumes, v)
		}
	}
	if i := c.Image; i != nil && r.Images[i.Address] == nil {
		image = i
	}
	for a, b := range names {
		if a == b {
			delete(names, a)
		}
	}
	rec := c.Sandbox.renamed(to, newNames(names))
	if why := r.clash(rec); why != "" {
		return nil, why
	}
	r.Sandboxes[to] = rec
	delete(r.Ended, to)
	if image != nil {
		r.Images[image.Address] = image
		brought = append(brought, image.Address)
	}
	if network != nil {
		r.Networks[network.Address] = network
		brought = append(brought, network.Address)
	}
	for _, v := range volumes {
		r.Volumes[v.Address] = v
		brought = append(brought, v.Address)
	}
	slices.Sort(brought)
	return append(brought, to), ""
}

// findNetwork is the address at which a noted network is on record, or will be.
func (r *Records) findNetwork(n *Network) (address, why string) {
	for _, a := range sortedKeys(r.Networks) {
		if r.Networks[a].ID == n.ID {
			return a, ""
		}
	}
	if other := r.Networks[n.Address]; other != nil {
		return "", "It is on " + n.Address + " with the id " + n.ID + ", and " + n.Address + " is on record as another network (" + other.ID + "). Move that out of the way first."
	}
	for _, a := range sortedKeys(r.Networks) {
		if r.Networks[a].CIDR.Overlaps(n.CIDR) {
			return "", "Its network " + n.CIDR.String() + " overlaps that of " + a + "."
		}
	}
	return n.Address, ""
}

// findVolume is the address at which a noted volume is on record, or will be.
func (r *Records) findVolume(v *Volume) (address, why string) {
	for _, a := range sortedKeys(r.Volumes) {
		if r.Volumes[a].ID == v.ID {
			return a, ""
		}
	}
	if other := r.Volumes[v.Address]; other != nil {
		return "", "It mounts " + v.Address + " with the id " + v.ID + ", and " + v.Address + " is on record as another volume (" + other.ID + "). Move that out of the way first."
	}
	return v.Address, ""
}

// clash says which record has something that rec brings with it; empty: none.
func (r *Records) clash(rec *Sandbox) string {
	type published struct {
		address, protocol string
		host              int
	}
	ports := map[published]bool{}
	for _, p := range rec.Ports {
		ports[published{p.Address, p.Protocol, p.Host}] = true
	}
	for _, a := range sortedKeys(r.Sandboxes) {
		other := r.Sandboxes[a]
		switch {
		case other.UID == rec.UID:
			return "It is an incarnation of " + a + ", which is on record."
		case rec.IDs.Size > 0 && other.IDs == rec.IDs:
			return a + " has its id range by now."
		case rec.Net != nil && other.Net != nil && *other.Net == *rec.Net && rec.Net.Address != (netip.Addr{}):
			return a + " has its address " + rec.Net.Address.String() + " by now."
		}
		for name, p := range other.Ports {
			if ports[published{p.Address, p.Protocol, p.Host}] {
				return "Port \"" + name + "\" of " + a + " has the host port of one of its ports by now."
			}
		}
	}
	return ""
}

// dropImports takes back what was put into the records for blocks that the plan does
// not speak of, and tells why those that it speaks of cannot be.
func (w *walk) dropImports() {
	for _, d := range w.first.refused {
		if w.covered(d.Address) {
			w.plan.Diags = append(w.plan.Diags, d)
		}
	}
	if w.inScope == nil {
		return
	}
	fresh := false
	w.first.changes = slices.DeleteFunc(w.first.changes, func(c Change) bool {
		if c.Action != ActImport || w.covered(c.Address) {
			return false
		}
		if !fresh {
			w.in.Records, fresh = w.in.Records.copied(), true
		}
		delete(w.in.Records.Sandboxes, c.Address)
		delete(w.in.Records.Networks, c.Address)
		delete(w.in.Records.Volumes, c.Address)
		delete(w.in.Records.Images, c.Address)
		return true
	})
	w.plan.Records = w.in.Records
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(mapKeys(m)) }
