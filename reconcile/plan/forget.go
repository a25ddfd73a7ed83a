package plan

import (
	"slices"

	"pinfold/config"
)

// Released is the Reason of a forget that gives up what is on the host: it stays as
// it is, marked, and is left alone for ever.
const Released = "released"

// givenUp reports whether a removed block says of something that is declared no more
// that it stays on the host.
func (w *walk) givenUp(a string) bool {
	return w.in.Desired != nil && !w.declared(a) && slices.ContainsFunc(w.in.Desired.Removals, func(r config.Removal) bool {
		return !r.Destroy && r.Covers(a)
	})
}

// forgotten is the change that gives something up.
func forgotten(a, kind, cause, consequence string) Change {
	return Change{Address: a, Kind: kind, Action: ActForget, Origin: FromFiles, Cause: cause, Reason: Released,
		Consequence: "forgotten: " + consequence}
}

const removedBlock = "a removed block says so"

// giveUp plans that a sandbox is left alone from now on.
func (o *one) giveUp() {
	c := forgotten(o.rec.Address, "sandbox", removedBlock, "left on the host as it is")
	c.Instance, c.Before = instanceOf(o.rec), encode(&o.rec.Spec)
	if o.seen.Alive {
		c.Consequence += ", its process goes on"
	}
	if len(o.rec.Spec.Ports) > 0 && !forwarded(&o.rec.Spec) {
		c.Notes = append(c.Notes, "its ports were served by the agent, which stops that")
	}
	o.w.add(c)
}

// forwarded reports whether the kernel alone serves a sandbox's ports, so that they
// need no agent. The executor decides it the same way.
func forwarded(s *config.Sandbox) bool {
	l := s.Lifetime
	return s.Network != nil && l.IdleTimeout <= 0 && !l.ResumeOnAccess && l.RenewOnAccess <= 0
}

// loner is an instance without a record that needs the network or volume with this
// id: one that was released, or that this plan releases. Empty: none.
func (w *walk) loner(kind, a, id string) string {
	for _, i := range sortedKeys(w.in.Observed.Instances) {
		s := w.in.Observed.Instances[i]
		if s.Released && (kind == "network" && s.Alive && s.Network == id || kind == "volume" && slices.Contains(s.Volumes, id)) {
			who := "instance " + i
			if s.Address != "" {
				who += " of " + s.Address
			}
			return who
		}
	}
	for _, user := range sortedKeys(w.in.Records.Sandboxes) {
		rec := w.in.Records.Sandboxes[user]
		if rec.Instance != nil && rec.uses(a) && w.goes(user) && w.givenUp(user) && w.covered(user) {
			return user
		}
	}
	return ""
}
