package config

import (
	"slices"
	"strconv"
	"strings"
)

// CanComeFirst lists what keeps a new instance of a sandbox from being there beside
// the old one: claims, which belong to one instance at a time, and host ports that
// are no other's choice. Sorted; empty: nothing does.
func CanComeFirst(spec *Sandbox) []string {
	var no []string
	for name := range spec.Volumes {
		no = append(no, "volume "+strconv.Quote(name))
	}
	for name, p := range spec.Ports {
		if p.Host != 0 {
			no = append(no, "host port "+strconv.Itoa(p.Host)+" of port "+strconv.Quote(name))
		}
	}
	slices.Sort(no)
	return no
}

// WayToComeFirst says what to do about what CanComeFirst lists.
const WayToComeFirst = "The old instance and the new one are there side by side for a while, and a claim or a host port can have only one of them. " +
	"Mount a volume resource in place of the claim, leave the port's host at 0 (any free one, which the sandbox exports), or set create_before_destroy to false."

// comesFirst refuses create_before_destroy of what two instances cannot have.
func (d *decoder) comesFirst(spec *Sandbox) {
	if !d.lifecycle.CreateBeforeDestroy {
		return
	}
	if no := CanComeFirst(spec); len(no) > 0 {
		rng := exprRange(blockOf(d.body, "lifecycle"), "create_before_destroy")
		d.ev.fail(d.in.address, &rng, "create_before_destroy is not possible with "+strings.Join(no, ", "), "%s", WayToComeFirst)
	}
}
