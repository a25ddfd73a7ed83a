package reconcile

import (
	"encoding/json"
	"maps"
	"strings"

	"pinfold/config"
	"pinfold/reconcile/plan"
)

// foretell changes exports to what they will be once the plan is applied: those
// that cannot be told yet go. It reports whether any differs, so that what refers
// to them may have to change as well.
func (e *Engine) foretell(exports config.Exports, p *plan.Plan, records *plan.Records) (changed bool) {
	forget := func(address string) {
		if _, known := exports[address]; known {
			delete(exports, address)
			changed = true
		}
	}
	for _, a := range p.Unsettled() {
		forget(a)
	}
	anew := networksAnew(p)
	for i := range p.Changes {
		c := &p.Changes[i]
		if moves(c, anew, records) {
			forget(c.Address)
		}
		have, known := exports[c.Address]
		if known && incarnates(c) && have.InstanceID != "" {
			have.InstanceID = "" // address and ports stay
			exports[c.Address] = have
			changed = true
		}
		if !known || !republishes(c) {
			continue
		}
		ports, told := portsAfter(c, records.Sandboxes[c.Address])
		switch {
		case !told:
			forget(c.Address)
		case !maps.Equal(ports, have.Ports):
			have.Ports = ports
			exports[c.Address] = have
			changed = true
		}
	}
	return changed
}

// unsettled are the addresses whose exports this plan changes or may change: what
// it makes, and sandboxes that get another instance, address or ports.
func unsettled(p *plan.Plan, records *plan.Records) map[string]bool {
	set, anew := map[string]bool{}, networksAnew(p)
	for _, a := range p.Unsettled() {
		set[a] = true
	}
	for i := range p.Changes {
		if c := &p.Changes[i]; moves(c, anew, records) || republishes(c) || incarnates(c) {
			set[c.Address] = true
		}
	}
	return set
}

// incarnates tells whether a change makes a new instance of a sandbox that has
// one.
func incarnates(c *plan.Change) bool {
	return c.Kind == "sandbox" && (c.Action == plan.ActReplace || c.Action == plan.ActRecreate)
}

// moves tells whether a change gives a sandbox another address: it goes to
// another network, or its network to another range.
func moves(c *plan.Change, anew map[string]bool, records *plan.Records) bool {
	if c.Kind != "sandbox" || c.Action != plan.ActReplace {
		return false
	}
	rec := records.Sandboxes[c.Address]
	for _, d := range c.Diff {
		if first, _, _ := strings.Cut(d.Path, "."); first == "network" {
			return true
		}
	}
	if rec == nil || rec.Net == nil {
		return false
	}
	if n := records.Networks[rec.Net.Network]; n == nil || !usable(n, rec.Net.Address) {
		return true
	}
	return anew[rec.Net.Network]
}

// networksAnew are the networks that a plan makes, for the first time or again.
func networksAnew(p *plan.Plan) map[string]bool {
	anew := map[string]bool{}
	for i := range p.Changes {
		if c := &p.Changes[i]; c.Kind == "network" && (c.Action == plan.ActReplace || c.Action == plan.ActCreate) {
			anew[c.Address] = true
		}
	}
	return anew
}

// republishes tells whether a change is about a sandbox's ports.
func republishes(c *plan.Change) bool {
	if c.Kind != "sandbox" {
		return false
	}
	for _, d := range c.Diff {
		if first, _, _ := strings.Cut(d.Path, "."); first == "port" {
			return true
		}
	}
	return false
}

// portsAfter tells the ports after a change; told is false when the host has
// still to choose one.
func portsAfter(c *plan.Change, rec *plan.Sandbox) (ports map[string]config.ExportPort, told bool) {
	var spec config.Sandbox
	if rec == nil || json.Unmarshal(c.After, &spec) != nil {
		return nil, false
	}
	ports = make(map[string]config.ExportPort, len(spec.Ports))
	for name, want := range spec.Ports {
		addr, protocol := portDefaults(want)
		p := config.ExportPort{Container: want.Container, Host: want.Host, Address: addr, Protocol: protocol}
		if old, had := rec.Ports[name]; p.Host == 0 && had && old.Address == addr && old.Protocol == protocol {
			p.Host = old.Host
		}
		if p.Host == 0 {
			return nil, false
		}
		ports[name] = p
	}
	return ports, true
}
