package plan

import (
	"maps"
	"slices"
	"strings"
)

// converge plans the way from what is to what should be, for a sandbox that is
// neither expired nor to go.
func (o *one) converge() {
	w, a := o.w, o.rec.Address
	switch {
	case w.networkGone(o):
		w.note(a + " cannot be brought up: " + o.spec.Network.Name + " is gone; apply makes it again")
	case w.waits(o.rec.Retry) && !o.revive:
		o.putOff()
	default:
		o.approach()
	}
	if o.revive {
		o.step(o.change(ActUpdate, FromHost, o.revivalCause(), "marked as no longer expired"))
	}
}

// approach plans by the phase.
func (o *one) approach() {
	mode, _ := effectiveMode(false, o.hold, o.spec)
	switch phase := o.st.Phase; {
	case phase == Pending:
		o.create(mode)
	case o.class == Replace:
		o.replace(mode)
	case phase == Failed:
		o.failed(mode)
	case phase == Lost:
		o.lost(mode)
	case phase == Stopped:
		o.stopped(mode)
	default:
		o.alive(mode)
	}
}

// putOff works out what would be done and leaves it for the retry's moment.
func (o *one) putOff() {
	w, a := o.w, o.rec.Address
	notes, drift, revive := len(w.plan.Notes), len(w.plan.Drift), o.revive
	o.approach()
	kept := slices.DeleteFunc(slices.Clone(w.steps[a]), func(c Change) bool { return c.Action != ActNoop })
	if len(kept) == len(w.steps[a]) {
		return
	}
	w.plan.Notes, w.plan.Drift, o.revive = w.plan.Notes[:notes], w.plan.Drift[:drift], revive
	w.note(a + " failed (" + o.rec.Retry.Error + "); tried again at " + stamp(o.rec.Retry.NextAt))
	w.wake(o.rec.Retry.NextAt)
	if w.steps[a] = kept; len(kept) == 0 {
		delete(w.steps, a)
	}
}

// networkGone reports whether a sandbox refers to a network without a record or
// a plan for one.
func (w *walk) networkGone(o *one) bool {
	n := o.spec.Network
	return n != nil && w.in.Records.Networks[n.Name] == nil && w.networks[n.Name] == nil
}

func (o *one) create(mode string) {
	cause := o.cause
	if len(o.diffs) == 0 {
		cause = "not created yet"
		if o.rec.Retry.Attempts > 0 {
			cause = "creation is tried again"
		}
	}
	c := o.change(ActCreate, o.origin, cause, "")
	c.Then = mode
	if o.w.in.Options.NoStart && mode != "suspended" && o.hold == nil {
		c.Then = "created" // a hold is an operator's word already
	}
	c.Consequence = creation(c.Then)
	o.step(c)
}

// replace plans a new instance in place of the old one, which may be gone or failed.
func (o *one) replace(mode string) {
	consequence := "replaced: writable layer lost" + o.claimsKept()
	c := o.change(ActReplace, o.origin, o.cause, consequence+ends(mode))
	c.Then, c.NewLease, c.Reason = mode, o.newLease, "replaced"
	if c.CreateFirst = o.comesFirst(mode); c.CreateFirst {
		c.Consequence = "replaced, create replacement and then destroy: writable layer lost" + ends(mode)
	}
	if o.newLease {
		if n := o.bothDeadlines(); n != "" {
			c.Notes = append(c.Notes, n)
		}
	}
	c.Notes = append(c.Notes, o.memoryLost(mode)...)
	c = o.adopt(c)
	for _, f := range o.forced {
		if !slices.Contains(c.ReplacePaths, f.Path) {
			c.Diff, c.ReplacePaths = append(c.Diff, f), append(c.ReplacePaths, f.Path)
		}
	}
	o.step(c)
}

// claimsKept words what a new writable layer leaves alone.
func (o *one) claimsKept() string {
	if len(o.spec.Volumes) == 0 {
		return ""
	}
	return ", " + volumes(slices.Sorted(maps.Keys(o.spec.Volumes))) + " kept"
}

func (o *one) memoryLost(mode string) []string {
	switch {
	case o.st.Phase != Paused:
		return nil
	case mode != "paused":
		return []string{"the memory of its processes is lost"}
	}
	why := "paused"
	if o.hold != nil {
		why = "held paused by " + o.hold.By
	}
	return []string{"the memory of its processes is lost: it is " + why + ", and a new process is started and frozen again"}
}

// recreate plans a new instance on the old files.
func (o *one) recreate(mode, cause string, fresh bool) {
	consequence := "recreated, files kept"
	switch {
	case fresh:
		consequence = "recreated: writable layer lost" + o.claimsKept()
	case !o.seen.Layer:
		consequence = "recreated on fresh files: its writable layer is gone" + o.claimsKept()
	}
	consequence += ends(mode)
	if len(o.diffs) > 0 {
		cause += "; " + o.cause
	}
	c := o.change(ActRecreate, o.origin, cause, consequence)
	c.Then, c.Fresh = mode, fresh
	o.step(c)
}

func (o *one) failed(mode string) {
	a := o.rec.Address
	why := "failed"
	if i := o.rec.Instance; i != nil && i.FailReason != "" {
		why = "failed: " + i.FailReason
	}
	if o.w.in.Trigger == Keep {
		o.w.note(a + " " + why + "; apply recreates it")
		o.update("updated")
		return
	}
	o.recreate(mode, why, false)
}

func (o *one) lost(mode string) {
	w, a := o.w, o.rec.Address
	cause := o.lostCause()
	switch o.spec.Lifetime.OnLost {
	case "retain":
		o.update("updated, stays lost")
		w.note(a + " is lost and retained (on_lost); -replace=" + a + " makes it anew")
	case "delete":
		o.update("updated")
		c := o.change(ActDelete, FromHost, cause, destruction(o.spec))
		c.Before, c.Reason, c.Volumes = encode(&o.rec.Spec), "lost", dyingClaims(o.spec)
		w.add(c)
		o.revive = false
	default:
		if o.backsOff() {
			w.note(a + " is lost; recreated at " + stamp(o.rec.Retry.NextAt))
			return
		}
		o.recreate(mode, cause, o.spec.Lifetime.OnLost == "recreate-fresh")
	}
}

// stopped plans for a sandbox without a process: nothing runs, so that changes
// wait for the next start.
func (o *one) stopped(mode string) {
	w, a := o.w, o.rec.Address
	ran := o.rec.phase().live() // it ended since the record was written
	up := mode == "running" || mode == "paused"
	rests := o.st.ownEnd() && !(o.modeChanged && o.rec.Spec.OperatingMode == "suspended")
	again := never
	if rests && up {
		again = o.restarts()
		rests = again != atOnce
	}
	waits := !rests && up && o.st.StoppedBy == ByKilled && o.backsOff()
	if len(o.diffs) > 0 {
		consequence := "updated"
		switch stays := !up || rests || waits; {
		case o.class == Restart && stays:
			consequence = "updated, takes effect at the next start"
		case o.class == InPlace && stays:
			consequence = "updated in place, stays stopped"
		case o.class == InPlace:
			consequence = "updated in place"
		}
		o.step(o.change(ActUpdate, o.origin, o.cause, consequence))
	}
	if claims := o.goneClaims(); len(claims) > 0 {
		o.remakeClaims(claims)
	}
	switch {
	case !up:
	case again == later:
		w.note(a + " " + ending(o.st.Outcome) + o.endedAt() + "; restarted at " + stamp(o.rec.Restarts.NextAt))
	case again == usedUp:
		c := o.change(ActNoop, FromHost, ending(o.st.Outcome), "failed: restarts used up, files kept")
		c.Then, c.Reason = "failed", "restarts used up"
		w.add(c)
		if w.in.Trigger == Apply {
			o.recreate(mode, "failed: restarts used up", false)
		} else {
			w.note(a + " failed: restarts used up; apply recreates it")
		}
		return
	case rests:
		w.note(a + " " + ending(o.st.Outcome) + o.endedAt() + "; start or -replace=" + a + " runs it again")
	case waits:
		w.note(a + " was killed from outside; started again at " + stamp(o.rec.Retry.NextAt))
	default:
		cause, origin := o.startCause(mode)
		c := o.change(ActStart, origin, cause, "started on the same files")
		if again == atOnce {
			c.Origin, c.Cause, c.Reason = FromHost, ending(o.st.Outcome)+"; restart.mode is "+o.spec.Restart.Mode, Restarted
		}
		o.step(c)
		if mode == "paused" {
			o.step(o.change(ActPause, origin, o.modeCause(mode), "paused, processes and memory kept"))
		}
		return
	}
	if ran && !slices.ContainsFunc(w.steps[a], func(c Change) bool { return c.Action == ActNoop }) {
		w.add(o.change(ActNoop, FromHost, ending(o.st.Outcome), "what its process held is released, files kept"))
	}
}

func (o *one) endedAt() string {
	if out := o.st.Outcome; out != nil && !out.At.IsZero() {
		return " at " + stamp(out.At)
	}
	return ""
}

// alive plans for a sandbox with a process.
func (o *one) alive(mode string) {
	phase := o.st.Phase
	stays := mode != "suspended" // the process is wanted
	gone := o.goneClaims()
	missing := slices.DeleteFunc(slices.Clone(o.seen.Missing), func(m string) bool { return m == "rootfs" || m == "cgroup" })
	broken := len(missing) < len(o.seen.Missing)
	behind := o.rec.Instance.RunningSpec > 0 && o.rec.Instance.RunningSpec < o.rec.Generation && o.st.Rebind == ""

	if stays && (o.class == Restart || broken || behind || len(gone) > 0 || o.remadeVolume() != "") {
		o.restart(mode, broken, behind, gone)
		return
	}
	if len(o.diffs) > 0 {
		consequence := "updated in place"
		switch {
		case !stays && o.class == Restart:
			consequence = "updated, takes effect at the next start"
		case stays && !o.modeChanged:
			consequence += keeps(phase)
		}
		o.step(o.change(ActUpdate, o.origin, o.cause, consequence))
	}
	if stays && len(missing) > 0 {
		c := o.change(ActRepair, FromHost, strings.Join(missing, ", ")+" missing", "repaired in place"+keeps(phase))
		c.Missing = missing
		o.step(c)
	}
	o.toMode(mode)
	if mode == "running" && phase == Running {
		o.idle()
	}
	if !stays && len(gone) > 0 {
		o.remakeClaims(gone)
	}
}

// toMode plans the step from a live phase to the mode.
func (o *one) toMode(mode string) {
	origin := o.modeOrigin()
	cause := o.modeCause(mode)
	switch phase := o.st.Phase; {
	case mode == "suspended":
		o.step(o.change(ActSuspend, origin, cause, "suspended: stopped, files kept"))
	case mode == "created":
	case phase == Created:
		if origin == FromHost && o.hold == nil {
			cause = "created and not started yet"
		}
		o.step(o.change(ActStart, origin, cause, "started"))
		if mode == "paused" {
			o.step(o.change(ActPause, origin, o.modeCause(mode), "paused, processes and memory kept"))
		}
	case mode == "paused" && phase == Running:
		o.step(o.change(ActPause, origin, cause, "paused, processes and memory kept"))
	case mode == "running" && phase == Paused:
		o.step(o.change(ActResume, origin, cause, "resumed, same processes"))
	}
}

// restart plans a new process on the same files. One that never started its
// command is recreated instead: there is nothing to stop.
func (o *one) restart(mode string, broken, behind bool, gone []string) {
	origin, cause, consequence := o.origin, o.cause, "restarted, files kept"
	if o.class != Restart {
		if len(o.diffs) == 0 {
			origin = FromHost
		}
		switch {
		case broken:
			cause = o.firstBroken() + " gone"
		case len(gone) > 0:
			cause = volumes(gone) + " gone"
			consequence = "restarted on " + emptied(gone)
		case behind:
			cause = "its process runs an older generation"
		default:
			cause = o.remadeVolume()
		}
	}
	c := o.change(ActRestart, origin, cause, consequence+ends(mode))
	if o.st.Phase == Created {
		c.Action = ActRecreate
		c.Consequence = "recreated, files kept" + ends(mode)
	}
	c.Then = mode
	if len(gone) > 0 {
		o.w.drift(o.rec.Address, volumes(gone)+" gone: "+lost(gone))
	}
	c.Notes = o.memoryLost(mode)
	o.step(c)
}

func (o *one) firstBroken() string {
	if slices.Contains(o.seen.Missing, "rootfs") {
		return "rootfs"
	}
	return "cgroup"
}

// goneClaims are the claims whose directories are gone from the host, sorted.
func (o *one) goneClaims() []string {
	var out []string
	for name, id := range o.rec.Claim {
		if o.w.volumeGone(id) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func (o *one) remakeClaims(claims []string) {
	o.w.drift(o.rec.Address, volumes(claims)+" gone: "+lost(claims))
	c := o.change(ActRepair, FromHost, volumes(claims)+" gone", "given "+emptied(claims))
	for _, n := range claims {
		c.Missing = append(c.Missing, "volume "+n)
	}
	o.step(c)
}

// emptied words claims that are made again.
func emptied(claims []string) string {
	article := "an empty "
	if len(claims) > 1 {
		article = "empty "
	}
	return article + volumes(claims) + ": " + lost(claims)
}

// remadeVolume says which mounted volume is made again under the process.
func (o *one) remadeVolume() string {
	for _, m := range o.spec.Mounts {
		if why := o.w.remade[m.Volume]; m.Volume != "" && why != "" {
			return why
		}
	}
	return ""
}

func (o *one) modeOrigin() Origin {
	if o.idleOff {
		return o.idleOrigin()
	}
	if o.modeChanged || o.released || (o.rec.Expired != nil && o.dateChanged) {
		return FromFiles
	}
	return FromHost
}

func (o *one) modeCause(mode string) string {
	switch {
	case o.modeChanged:
		return "operating_mode changed"
	case o.released:
		return "hold released"
	case o.idleOff:
		return "idle_timeout removed"
	case o.hold == nil && o.rec.Expired != nil:
		return o.revivalCause()
	case o.hold != nil:
		return "held " + o.hold.Mode + " by " + o.hold.By
	}
	return "operating_mode is " + mode
}

func (o *one) revivalCause() string {
	if _, _, dated := Deadline(o.spec, o.lease); !dated {
		return "its deadline was removed"
	}
	return "its deadline was moved ahead"
}

// startCause says why a stopped sandbox is started.
func (o *one) startCause(mode string) (string, Origin) {
	origin := o.modeOrigin()
	switch {
	case o.modeChanged, o.released, o.idleOff:
		return o.modeCause(mode), origin
	case o.rec.Expired != nil:
		return o.revivalCause(), origin
	case o.st.StoppedBy == ByKilled:
		return "process gone: killed from outside", FromHost
	case o.rec.Retry.Error != "":
		return "the start is tried again", FromHost
	}
	return o.modeCause(mode), origin
}
