package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"pinfold/config"
)

const (
	dyingLook   = 250 * time.Millisecond // how soon to look again at one that is still dying
	unknownLook = 5 * time.Second        // and at one that could not be looked at
)

// one is the decision about one recorded sandbox.
type one struct {
	w    *walk
	rec  *Sandbox
	d    *config.Resource[config.Sandbox] // nil: the record is what is wanted
	seen Seen
	st   Status
	// stuck is why nothing may be done to it now; empty: anything may.
	stuck string

	spec  *config.Sandbox // as it will be
	lease Lease           // as it will be
	hold  *Hold           // as it will be

	diffs       []difference
	unknown     []string // of the declaration, without what is ignored
	class       Class
	origin      Origin
	cause       string // of a change of the spec or of a forced replacement
	modeChanged bool   // the files change operating_mode
	dateChanged bool   // the files change a deadline
	released    bool   // -release-holds
	idleOff     bool   // held by the idle rule, which is none of its rules any more
	newLease    bool
	forced      []Diff // what forces a replacement without being a difference of the specs
	revive      bool
	adopted     bool // a step has taken the spec
}

// sandbox decides about the sandbox at address a, declared, recorded or ended.
func (w *walk) sandbox(a string) {
	if w.visited[a] {
		return
	}
	w.visited[a] = true
	d, rec := w.sandboxes[a], w.in.Records.Sandboxes[a]
	if d != nil && len(d.Unknown) > 0 {
		// Whether its unknown values can become known depends on what they refer to.
		for _, dep := range d.DependsOn {
			if w.sandboxes[dep] != nil && w.covered(dep) {
				w.sandbox(dep)
			}
		}
	}
	switch {
	case rec == nil && (d == nil || w.in.Options.Destroy):
		if w.in.Records.Ended[a] != nil && w.goes(a) {
			_, cause := w.endReason(true)
			w.add(Change{Address: a, Kind: "sandbox", Action: ActForget, Origin: FromFiles, Cause: cause,
				Consequence: "forgotten: it ended before"})
		}
	case rec == nil:
		w.declare(a, d)
	default:
		w.decide(w.looks[a])
	}
}

// declare decides about a sandbox that is declared and not recorded.
func (w *walk) declare(a string, d *config.Resource[config.Sandbox]) {
	now, spec := w.in.Now, &d.Spec
	forced := w.replaced(a)
	if e := w.in.Records.Ended[a]; e != nil && !forced && !endedAgain(e, spec, now) {
		how := "a later deadline in the files or -replace=" + a + " makes it again"
		if e.Reason == "lost" {
			how = "-replace=" + a + " makes it again"
		}
		w.note(a + " ended at " + stamp(e.At) + " (" + e.Reason + ") and stays ended; " + how)
		return
	}
	if dep := w.endedDependency(d); dep != "" {
		w.note(a + " is not made: it refers to " + dep + ", which is not there")
		return
	}
	if w.cannotComeFirst(spec, d) {
		return
	}
	lease := StartLease(spec, now)
	deadline, reason, dated := Deadline(spec, lease)
	if dated && !now.Before(deadline) {
		attribute := attributeOf(reason)
		w.warn(a, a+" is not created: its "+attribute+" has passed",
			"It would end at once: "+attribute+" is "+stamp(deadline)+". Give a later one.", source(d, attribute))
		return
	}
	if !slices.Contains(d.Unknown, "shutdown_time") && !slices.Contains(d.Unknown, "lifetime.ttl") && w.capped(a, spec, lease, d) {
		return
	}
	c := Change{Address: a, Kind: "sandbox", Action: ActCreate, Origin: FromFiles, Cause: "declared",
		After: withoutUnknown(encode(spec), d.Unknown), Unknown: d.Unknown}
	c.Defaults = defaults(spec, d.Sources)
	if forced {
		c.Cause = "-replace"
	}
	c.Then, _ = effectiveMode(false, nil, spec)
	if w.in.Options.NoStart && c.Then != "suspended" {
		c.Then = "created"
	}
	c.Consequence = creation(c.Then)
	w.add(c)
}

// creation words a create by the mode it ends in.
func creation(then string) string {
	switch then {
	case "running":
		return "created and started"
	case "paused":
		return "created and started, then frozen"
	case "suspended":
		return "created without a process"
	}
	return "created, not started"
}

// endedAgain reports whether the files make an ended sandbox again: its deadline
// was moved ahead or removed since. A clock that stepped back is no reason.
func endedAgain(e *Ended, spec *config.Sandbox, now time.Time) bool {
	ahead := spec.ShutdownTime.IsZero() || spec.ShutdownTime.After(now)
	switch e.Reason {
	case "ttl_expiry":
		// A ttl that was none before the end either was not removed: the lease came from a renewal.
		return ahead && spec.Lifetime.TTL != e.TTL && (spec.Lifetime.TTL == 0 || spec.Lifetime.TTL > e.TTL)
	case "shutdown_time":
		return (spec.ShutdownTime.IsZero() && !e.ShutdownTime.IsZero()) || (ahead && spec.ShutdownTime.After(e.ShutdownTime))
	}
	return false
}

// endedDependency is what an unknown value refers to that neither exists nor
// comes in this plan, so that the value can never be known.
func (w *walk) endedDependency(d *config.Resource[config.Sandbox]) string {
	if len(d.Unknown) == 0 {
		return ""
	}
	for _, dep := range d.DependsOn {
		if w.sandboxes[dep] != nil && w.in.Records.Sandboxes[dep] == nil && len(w.steps[dep]) == 0 {
			return dep
		}
	}
	return ""
}

func (w *walk) replaced(a string) bool {
	return slices.ContainsFunc(w.in.Options.Replace, func(n string) bool { return config.Covers(n, a) })
}

// capped refuses a deadline beyond the host's max_lifetime, or none at all.
func (w *walk) capped(a string, spec *config.Sandbox, l Lease, d *config.Resource[config.Sandbox]) bool {
	limit := w.in.Limits.MaxLifetime
	if limit <= 0 {
		return false
	}
	deadline, reason, dated := Deadline(spec, l)
	switch {
	case !dated:
		w.fail(a, a+" has no deadline, but max_lifetime is "+words(limit),
			"The host's max_lifetime allows no sandbox without an end. Set shutdown_time or lifetime.ttl.", position(d))
	case deadline.Sub(w.in.Now) > limit:
		attribute := attributeOf(reason)
		ends, last := stamps(deadline, w.in.Now.Add(limit))
		w.fail(a, a+" would live longer than max_lifetime ("+words(limit)+")",
			"Its "+attribute+" ends it at "+ends+"; the host allows nothing later than "+last+".", source(d, attribute))
	default:
		return false
	}
	return true
}

func attributeOf(expired string) string {
	if expired == TTLExpiry {
		return "lifetime.ttl"
	}
	return "shutdown_time"
}

// decide looks at a recorded sandbox and plans what it needs.
func (w *walk) decide(o *one) {
	rec := o.rec
	if w.in.Options.RefreshOnly {
		return
	}
	if o.stuck != "" {
		if o.seen.Released && w.goes(rec.Address) && w.givenUp(rec.Address) {
			o.giveUp() // begun before, and cut off
			return
		}
		w.stays[rec.Address] = o.stuck
		return
	}
	if w.goes(rec.Address) {
		if !o.end() {
			w.stays[rec.Address] = "may not be destroyed"
		}
		return
	}
	if !o.want() || !o.date() {
		w.stays[rec.Address] = "its change is refused"
		return
	}
	defer o.noteHold()
	if o.expire() {
		return
	}
	if o.dying() {
		w.note(rec.Address + " waits: processes of its last instance are still dying")
		w.stays[rec.Address] = "is still dying"
		return
	}
	o.warn()
	o.converge()
}

// look finds out what is true, and whether anything may be done at all.
func (o *one) look() {
	w, rec := o.w, o.rec
	if w.in.Options.NoRefresh {
		o.st = Status{Phase: rec.phase()}
		if i := rec.Instance; i != nil {
			o.st.StoppedBy, o.st.Outcome, o.st.PID, o.st.StartTime = i.StoppedBy, i.Outcome, i.PID, i.StartTime
		}
		o.seen = Seen{UID: rec.UID, Layer: true, Alive: o.st.Phase.live(), Started: o.st.Phase != Created, Frozen: o.st.Phase == Paused}
		return
	}
	present := false
	if rec.Instance != nil {
		o.seen, present = w.in.Observed.Instances[rec.Instance.ID]
		// Another sandbox's instance under this id is none of ours.
		if present && o.seen.UID != "" && o.seen.UID != rec.UID {
			o.seen, present = Seen{}, false
		}
	}
	o.st = lookedAt(rec, o.seen, present)
	known := !present || o.seen.Unknown == ""
	others := w.survivors[rec.UID]
	gone := known && !o.seen.Alive && !o.seen.Dying
	switch {
	case !known:
		w.drift(rec.Address, "could not be looked at: "+o.seen.Unknown)
		w.note(rec.Address + " could not be looked at (" + o.seen.Unknown + "); nothing is done to it")
		w.wake(w.in.Now.Add(unknownLook))
		o.stuck = "could not be looked at"
	case o.seen.Released:
		// As where a backup of before brought the record back.
		w.note(rec.Address + " was given up (instance " + instanceOf(rec) + "), and nothing is done to it; pinfold state rm '" + rec.Address + "' forgets its record, an import block takes it back")
		o.stuck = "was given up"
	case len(others) == 0:
	case gone && len(others) == 1 && (o.st.Phase == Lost || o.st.Phase == Pending) && w.in.Observed.Instances[others[0]].Unknown == "":
		o.rebind(others[0])
	default:
		w.drift(rec.Address, strconv.Itoa(len(others))+" other live instances bear its uid: "+strings.Join(others, ", "))
		if !o.seen.Alive {
			w.note(rec.Address + " has other live instances (" + strings.Join(others, ", ") + "); nothing is touched until at most one is left")
			o.stuck = "has other live instances"
		}
	}
	if o.st.Outcome != nil && o.st.Outcome.At.IsZero() {
		at := *o.st.Outcome
		at.At = w.in.Now
		o.st.Outcome = &at
	}
	o.st.Conditions = conditions(rec, &o.st, o.seen, known, w.in.Now)
	w.plan.Status[rec.Address] = o.st
	if o.dying() {
		w.wake(w.in.Now.Add(dyingLook))
	}
	switch {
	case o.stuck != "":

	case o.st.Phase == Lost && rec.phase().live():
		w.drift(rec.Address, o.lostCause())
	case o.st.Phase == Stopped && o.st.StoppedBy == ByKilled:
		w.drift(rec.Address, "process gone: killed from outside")
	case o.st.Phase.live() && len(o.seen.Missing) > 0:
		w.drift(rec.Address, strings.Join(o.seen.Missing, ", ")+" missing")
	case o.st.Phase == Stopped && !o.seen.Layer && !rec.Spec.Security.ReadOnlyRoot:
		w.drift(rec.Address, "writable layer gone: its files are lost")
	case o.dying():
		w.drift(rec.Address, "its main process ended, others are still dying")
	case w.in.Options.RefreshOnly && o.st.ownEnd() && rec.phase().live():
		w.drift(rec.Address, ending(o.st.Outcome)) // elsewhere it is how things should be
	}
}

// dying reports whether something of an ended process is still there. Nothing
// new may be started beside it.
func (o *one) dying() bool { return o.seen.Dying && !o.seen.Alive }

// rebind goes on with the one other live instance of this sandbox. The rest of
// the plan speaks of that instance.
func (o *one) rebind(id string) {
	rec := *o.rec
	inst := Instance{ID: id, Phase: Created, BootID: o.w.in.Observed.BootID}
	if rec.Instance != nil {
		inst.CreatedAt, inst.StartedAt = rec.Instance.CreatedAt, rec.Instance.StartedAt
	}
	rec.Instance = &inst
	o.rec = &rec
	o.seen = o.w.in.Observed.Instances[id]
	o.st = lookedAt(o.rec, o.seen, true)
	o.st.Rebind = id
	o.w.drift(rec.Address, "its recorded instance is gone, but instance "+id+" of it lives")
	o.w.add(Change{Address: rec.Address, Kind: "sandbox", Action: ActNoop, Origin: FromHost, Instance: id,
		Cause: "instance " + id + " survived", Consequence: "bound to it"})
}

func (o *one) lostCause() string {
	if i := o.rec.Instance; i != nil && i.BootID != "" && o.w.in.Observed.BootID != "" && i.BootID != o.w.in.Observed.BootID {
		return "lost: the host rebooted"
	}
	return "lost: process gone without an outcome"
}

// end plans the destruction of a sandbox that is no longer wanted; false when
// it is refused.
func (o *one) end() bool {
	w, a := o.w, o.rec.Address
	if w.givenUp(a) {
		o.giveUp()
		return true
	}
	reason, cause := w.endReason(o.d == nil)
	if w.guarded(a, lifecycle(o.d, o.rec.Lifecycle), "destroyed", cause, guard(o.d)) {
		return false
	}
	c := o.change(ActDelete, FromFiles, cause, destruction(&o.rec.Spec))
	c.Before, c.Reason, c.Volumes = encode(&o.rec.Spec), reason, dyingClaims(&o.rec.Spec)
	w.add(c)
	return true
}

func destruction(spec *config.Sandbox) string { return "destroyed: " + losses(spec) }

// losses words the data that goes with a sandbox.
func losses(spec *config.Sandbox) string {
	if claims := dyingClaims(spec); len(claims) > 0 {
		return "writable layer and " + volumes(claims) + " lost"
	}
	return "writable layer lost"
}

// dyingClaims are the claims that go with the sandbox, sorted.
func dyingClaims(spec *config.Sandbox) []string {
	var names []string
	for n, c := range spec.Volumes {
		if c.OnDestroy != "retain" {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names
}

func (o *one) change(action Action, origin Origin, cause, consequence string) Change {
	c := Change{Address: o.rec.Address, Kind: "sandbox", Action: action, Origin: origin, Cause: cause, Consequence: consequence}
	if o.rec.Instance != nil {
		c.Instance = o.rec.Instance.ID
	}
	if (action == ActUpdate || action == ActRestart) && slices.ContainsFunc(o.diffs, isDeadline) {
		if n := o.bothDeadlines(); n != "" {
			c.Notes = append(c.Notes, n)
		}
	}
	return c
}

// isDeadline reports whether a difference moves the deadline.
func isDeadline(d difference) bool { return d.Path == "lifetime.ttl" || d.Path == "shutdown_time" }

// want compares record and declaration; false when the change is refused.
func (o *one) want() bool {
	w, rec, d := o.w, o.rec, o.d
	a := rec.Address
	if d != nil {
		want, unknown := ignore(&rec.Spec, &d.Spec, ignored(rec, d.Lifecycle), d.Unknown)
		if !sameSandbox(&rec.Spec, want) || len(unknown) > 0 {
			settles := slices.ContainsFunc(d.DependsOn, func(dep string) bool {
				return slices.ContainsFunc(w.steps[dep], func(c Change) bool { return c.Action != ActNoop })
			})
			o.diffs = markUnknown(diffSandbox(&rec.Spec, want), unknown, settles)
		}
		o.diffs = append(o.diffs, diffLifecycle(rec.Lifecycle, d.Lifecycle)...)
		if len(o.diffs) > 0 {
			o.spec, o.unknown = decided(&rec.Spec, want, unknown), unknown
			o.class, o.origin, o.cause = worst(o.diffs), FromFiles, changedNames(o.diffs)
		}
	}
	if o.class == Refused {
		if rec.Instance != nil || len(rec.Claim) > 0 {
			w.refuseClaims(a, o.diffs, d)
			return false
		}
		o.class = InPlace
	}
	if w.cannotComeFirst(o.spec, d) {
		return false
	}
	o.modeChanged = o.spec.OperatingMode != rec.Spec.OperatingMode
	o.dateChanged = !o.spec.ShutdownTime.Equal(rec.Spec.ShutdownTime) || o.spec.Lifetime.TTL != rec.Spec.Lifetime.TTL

	// What it stands on may have been made anew.
	force := func(cause string, origin Origin) {
		if o.class != Replace {
			o.class, o.cause = Replace, cause
			if o.origin != FromFiles {
				o.origin = origin
			}
		}
	}
	filesOrigin := FromFiles
	if w.in.Trigger == Keep {
		filesOrigin = FromHost
	}
	img, remade, made := w.in.Records.Images[o.spec.Image], w.remade[o.spec.Image], ""
	if rec.Instance != nil {
		made = rec.Instance.Image
	}
	switch {
	case w.networkGone(o):
		// Nothing can be made anew without it.
	case remade != "" && made != "" && made == w.images[o.spec.Image].Spec.Source && len(w.images[o.spec.Image].Unknown) == 0:
		// The image goes back to what the instance was made from, as after a replacement
		// that failed: a digest has the form of a source.
	case remade != "":
		force(remade, filesOrigin)
		o.forced = append(o.forced, Diff{Path: "image", Before: encode(cmp.Or(made, img.Digest)), Unknown: true, Replace: true})
	case made != "" && img != nil && img.Digest != "" && img.Digest != made:
		force("image changed", filesOrigin)
		o.forced = append(o.forced, Diff{Path: "image", Before: encode(made), After: encode(img.Digest), Replace: true})
	}
	if n := o.spec.Network; n != nil {
		if why := w.remade[n.Name]; why != "" {
			force(why, filesOrigin)
		} else if w.movedAway(rec, n.Name) {
			force(n.Name+" was replaced", filesOrigin)
		}
	}
	if by := o.triggered(); by != "" && !w.networkGone(o) {
		force(triggerPath+": "+by+" changed", FromFiles)
		o.forced = append(o.forced, Diff{Path: triggerPath, After: encode(by), Replace: true})
	}
	if w.replaced(a) && !w.networkGone(o) {
		force("-replace", FromFiles)
	}
	if o.class == Replace && o.st.Phase != Pending {
		l := rec.Lifecycle
		if d != nil {
			l = d.Lifecycle
		}
		if w.guarded(a, l, "replaced", o.cause, guard(d)) {
			return false
		}
		o.newLease = true
	}

	switch h := rec.Hold; {
	case h == nil:
	case o.modeChanged:
		o.release(nil, FromFiles, "operating_mode changed")
	case w.in.Options.ReleaseHolds && o.rests():
		// What that does to its deadline is for expire to find out.
	case w.in.Options.ReleaseHolds:
		o.released = o.release(nil, FromFiles, "-release-holds")
	case h.By == "idle" && o.spec.Lifetime.IdleTimeout <= 0:
		o.idleOff = true
		o.release(h.without("idle"), o.idleOrigin(), "idle_timeout removed")
	}
	return true
}

// rests reports whether the sandbox expired by pause and is held, by that or by an
// operator who had paused it before.
func (o *one) rests() bool {
	ex := o.rec.Expired
	return o.rec.Hold != nil && ex != nil && ex.Paused && o.st.Phase == Paused
}

// release plans the end of the hold, of which left stays. One by expiry stays
// until the sandbox is resumed or revived; only what it lies over goes then.
func (o *one) release(left *Hold, origin Origin, cause string) bool {
	h := o.rec.Hold
	if ex := o.rec.Expired; h.By == "expiry" && ex != nil && ex.Paused {
		if h.Under == nil {
			return false
		}
		alone := *h
		alone.Under = nil
		c := o.change(ActRelease, origin, cause, "released: no longer held "+h.Under.Mode+" once it is resumed")
		o.hold, c.Hold = &alone, &alone
		o.w.add(c)
		return false
	}
	c := o.change(ActRelease, origin, cause, "released: no longer held "+h.Mode)
	if left != nil {
		c.Consequence = "released: held " + left.Mode + " by " + left.By + " again"
	}
	o.hold, c.Hold = left, left
	o.w.add(c)
	return true
}

// idleOrigin is on whose behalf a hold by the idle rule goes with its rule.
func (o *one) idleOrigin() Origin {
	if o.w.in.Trigger == Keep {
		return FromHost
	}
	return FromFiles
}

// noteHold says which hold stands over the declared mode and stays.
func (o *one) noteHold() {
	h := o.hold
	if h == nil || h.By == "expiry" || o.w.leaves(o.rec.Address) {
		return
	}
	text := o.rec.Address + " is held " + h.Mode + " by " + h.By + " since " + clock(h.At, o.w.in.Now)
	if h.Reason != "" {
		text += " (" + h.Reason + ")"
	}
	o.w.note(text + "; apply keeps it")
}

// movedAway reports whether the address reserved for a sandbox is none of its
// network's any more: an earlier plan replaced the network and was cut short.
func (w *walk) movedAway(rec *Sandbox, network string) bool {
	if rec.Net == nil || rec.Net.Network != network || !rec.Net.Address.IsValid() {
		return false
	}
	if n := w.in.Records.Networks[network]; n != nil {
		return n.CIDR.IsValid() && !n.CIDR.Contains(rec.Net.Address)
	}
	d := w.networks[network]
	if d == nil {
		return false
	}
	p, err := netip.ParsePrefix(d.Spec.CIDR)
	return err != nil || !p.Contains(rec.Net.Address)
}

// adopt is a step that, being the first, also takes the declared spec.
func (o *one) adopt(c Change) Change {
	if o.adopted || len(o.diffs) == 0 {
		return c
	}
	o.adopted = true
	c.Before, c.After, c.Unknown = encode(&o.rec.Spec), withoutUnknown(encode(o.spec), o.unknown), o.unknown
	c.Diff, c.ReplacePaths = printed(o.diffs)
	return c
}

func (o *one) step(c Change) {
	c = o.adopt(c)
	if o.revive {
		c.Revive, o.revive = true, false
	}
	o.w.add(c)
}
