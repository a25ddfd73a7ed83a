package plan

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pinfold/config"
)

// The worlds drawn here are wilder than any real one: records and observations
// are drawn independently of each other, and so are the files.

func pick[T any](t *rapid.T, what string, from ...T) T {
	return rapid.SampledFrom(from).Draw(t, what)
}

func moment(t *rapid.T, what string) time.Time {
	return pick(t, what, time.Time{}, time.Time{}, t0.Add(-time.Hour), t0.Add(-time.Nanosecond), t0, t0.Add(time.Nanosecond), t0.Add(90*time.Minute))
}

func drawSpec(t *rapid.T) config.Sandbox {
	s := spec()
	s.Image = pick(t, "image", "image.base", "image.base", "image.other")
	s.Command = pick(t, "command", []string{"a"}, []string{"a", "b"})
	s.Labels = pick(t, "labels", nil, map[string]string{}, map[string]string{"x": "1"})
	s.OperatingMode = pick(t, "mode", "running", "running", "paused", "suspended")
	s.ShutdownTime = moment(t, "shutdown_time")
	s.ShutdownPolicy = pick(t, "policy", "retain", "delete", "pause", "pause")
	s.Lifetime.Clock = pick(t, "clock", "always", "running")
	s.Lifetime.IdleTimeout = pick(t, "idle_timeout", config.Duration(0), 0, config.Duration(time.Minute), config.Duration(2*time.Hour))
	s.Lifetime.IdleAction = pick(t, "idle_action", "pause", "suspend", "")
	s.Lifetime.RenewOnAccess = pick(t, "renew_on_access", config.Duration(0), config.Duration(2*time.Hour))
	s.Restart = config.Restart{Mode: pick(t, "restart", "never", "on-failure", "always"), MaxAttempts: pick(t, "attempts", 0, 1, 3)}
	s.Health = pick(t, "health", nil, nil, &config.Health{TCP: 80})
	s.Lifetime.TTL = pick(t, "ttl", config.Duration(0), 0, config.Duration(time.Hour), config.Duration(3*time.Hour))
	s.Lifetime.OnLost = pick(t, "on_lost", "recreate", "recreate-fresh", "retain", "delete")
	s.Security.UserNamespace = rapid.Bool().Draw(t, "userns")
	if n := pick(t, "network", "", "network.a", "network.b"); n != "" {
		s.Network = &config.Attachment{Name: n}
	}
	if v := pick(t, "mount", "", "", "volume.a", "volume.b"); v != "" {
		s.Mounts = []config.Mount{{Volume: v, Path: "/data"}}
	}
	s.Volumes = pick(t, "claim", nil, map[string]config.Claim{"work": {Path: "/work"}}, map[string]config.Claim{"work": {Path: "/work", OnDestroy: "retain"}})
	s.Ports = pick(t, "port", nil, map[string]config.Port{"http": {Container: 80, Host: 8080}}, map[string]config.Port{"http": {Container: 81}})
	return s
}

func drawLife(t *rapid.T) config.Lifecycle {
	return config.Lifecycle{
		PreventDestroy:      pick(t, "prevent_destroy", false, false, false, false, false, false, false, true),
		CreateBeforeDestroy: pick(t, "create_before_destroy", false, false, true),
		IgnoreChanges:       pick(t, "ignore_changes", nil, nil, nil, []string{"labels", "image"}),
	}
}

func drawOutcome(t *rapid.T) *Outcome {
	if rapid.Bool().Draw(t, "no outcome") {
		return nil
	}
	return &Outcome{ExitCode: pick(t, "code", 0, 1, 137), Signal: pick(t, "signal", 0, 9, 15), Outside: pick(t, "outside", 0, 15),
		OOM: rapid.Bool().Draw(t, "oom"), At: t0.Add(-time.Minute), Reason: pick(t, "reason", "exited", "killed", "oom", "ttl_expiry")}
}

func drawSeen(t *rapid.T, uid string) Seen {
	s := Seen{
		UID: uid, Layer: rapid.Bool().Draw(t, "layer"), Alive: pick(t, "alive", true, true, false), PID: 100, StartTime: 7,
		Started: pick(t, "started", true, true, false), Outcome: drawOutcome(t), OOMKills: pick(t, "oomkills", uint64(0), 0, 1),
		Unknown: pick(t, "unknown", "", "", "", "", "", "", "EIO"),
		Missing: pick(t, "missing", nil, nil, nil, nil, []string{"link"}, []string{"rootfs", "link"}, []string{"limits"}),
	}
	s.Frozen = s.Started && rapid.Bool().Draw(t, "frozen")
	s.Dying = !s.Alive && pick(t, "dying", false, false, false, true)
	s.Health = pick(t, "probed", nil, &Health{Status: "starting"}, &Health{Status: "passing"}, &Health{Status: "failing", Message: "refused"})
	return s
}

func drawRecord(t *rapid.T, i int) (*Sandbox, *Seen) {
	name := fmt.Sprint("s", i)
	sp := drawSpec(t)
	rec := &Sandbox{Address: "sandbox." + name, UID: "uid-" + name, Generation: int64(pick(t, "generation", 1, 2)), Spec: sp, Lifecycle: drawLife(t)}
	if pick(t, "lease", true, true, false) {
		rec.Lease = StartLease(&sp, t0.Add(-2*time.Hour))
		if u := moment(t, "renewed"); !u.IsZero() {
			rec.Lease.Until, rec.Lease.Renewed = u, true
		}
	}
	if m := pick(t, "hold", "", "", "", "running", "paused", "suspended", "created"); m != "" {
		rec.Hold = &Hold{Mode: m, By: "operator", At: t0.Add(-time.Hour)}
	}
	if by := pick(t, "hold over it", "", "", "", "idle", "expiry"); by != "" {
		rec.Hold = &Hold{Mode: pick(t, "its mode", "paused", "suspended"), By: by, At: t0.Add(-time.Minute), Under: rec.Hold}
		if by == "expiry" {
			rec.Hold.Mode = "paused"
		}
	}
	if !rec.Lease.Start.IsZero() {
		if pick(t, "stopped lease", false, false, true) {
			rec.Lease.Until, rec.Lease.EndedAt = time.Time{}, moment(t, "ended at")
		}
		rec.Lease.ActedOn = moment(t, "acted on")
	}
	rec.LastActivity = moment(t, "last activity")
	rec.Warned = moment(t, "warned")
	if pick(t, "restarted", false, true) {
		rec.Restarts = Retry{Attempts: pick(t, "restarts", 1, 3), Since: t0.Add(-time.Hour), NextAt: moment(t, "next restart")}
	}
	if sp.Network != nil {
		rec.Net = &Net{Network: sp.Network.Name, Address: netip.MustParseAddr(pick(t, "address", "10.88.0.5", "10.88.0.5", "10.99.0.5"))}
	}
	if d := moment(t, "expired"); !d.IsZero() && pick(t, "is expired", false, false, true) {
		rec.Expired = &Expired{Deadline: d, Reason: pick(t, "why", TTLExpiry, ShutdownTime), At: d, Done: rapid.Bool().Draw(t, "done"), Paused: rapid.Bool().Draw(t, "expired and paused")}
	}
	if pick(t, "retry", false, false, true) {
		rec.Retry = Retry{Attempts: 2, NextAt: moment(t, "next"), Since: t0.Add(-time.Hour), Error: pick(t, "error", "", "no such file")}
	}
	if len(sp.Volumes) > 0 && rapid.Bool().Draw(t, "claims made") {
		rec.Claim = map[string]string{"work": "v-" + name}
	}
	for n := range pick(t, "deposed", 0, 0, 0, 1, 2) {
		d := Deposed{Instance: Instance{ID: fmt.Sprint("i-deposed", i, n), Phase: pick(t, "its phase", Running, Stopped, Pending)}}
		if at := pick(t, "its network", "", "network.a", "network.b", "network.c"); at != "" {
			d.Net = &Net{Network: at, Address: netip.MustParseAddr("10.88.0.77")}
		}
		if pick(t, "its removal failed", false, false, true) {
			d.Retry = Retry{Attempts: 1, NextAt: moment(t, "next removal"), Error: "busy"}
		}
		rec.Deposed = append(rec.Deposed, d)
	}
	if pick(t, "pending", false, false, false, false, true) {
		return rec, nil
	}
	rec.Instance = &Instance{
		StartedAt: t0.Add(-pick(t, "up", time.Second, time.Minute, time.Hour)),
		ID:        "i-" + name, Phase: pick(t, "phase", Phases...), PID: 100, StartTime: 7, BootID: pick(t, "boot", boot, boot, "boot-0"),
		RunningSpec: int64(pick(t, "running spec", 0, 1, 2)), StoppedBy: pick(t, "stopped by", "", ByExit, ByStop, BySuspend, ByExpiry, ByKilled, ByOOM),
		Outcome: drawOutcome(t), Image: pick(t, "made from", "", "digest of host", "other"),
	}
	if pick(t, "unseen", false, false, false, true) {
		return rec, nil
	}
	seen := drawSeen(t, rec.UID)
	return rec, &seen
}

// drawWorld draws everything but the trigger and the options.
func drawWorld(t *rapid.T) Input {
	in := Input{
		Now: t0, Trigger: Apply,
		Records: Records{Sandboxes: map[string]*Sandbox{}, Networks: map[string]*Network{}, Volumes: map[string]*Volume{},
			Images: map[string]*Image{}, Outputs: map[string]*config.Output{}, Ended: map[string]*Ended{}},
		Observed: Observed{BootID: boot, Instances: map[string]Seen{}, Networks: map[string]SeenNetwork{}, Volumes: map[string]bool{}},
		Desired:  &config.Desired{},
	}
	d := in.Desired
	for i := range rapid.IntRange(0, 4).Draw(t, "sandboxes") {
		a := fmt.Sprint("sandbox.s", i)
		known := pick(t, "where", "both", "both", "both", "declared", "recorded", "ended")
		if known == "both" || known == "recorded" {
			rec, seen := drawRecord(t, i)
			in.Records.Sandboxes[a] = rec
			if seen != nil {
				in.Observed.Instances[rec.Instance.ID] = *seen
			}
			for n := range pick(t, "survivors", 0, 0, 0, 0, 1, 2) {
				in.Observed.Instances[fmt.Sprint("i-other", i, n)] = drawSeen(t, rec.UID)
			}
			for _, dep := range rec.Deposed {
				if pick(t, "deposed seen", true, true, false) {
					in.Observed.Instances[dep.Instance.ID] = drawSeen(t, rec.UID)
				}
			}
			if rapid.Bool().Draw(t, "doomed") {
				rec.Doomed = []string{fmt.Sprint("i-other", i, 0)}
			}
			for _, id := range rec.Claim {
				in.Observed.Volumes[id] = pick(t, "claim there", true, true, false)
			}
			if known == "both" {
				want := rec.Spec
				if rapid.Bool().Draw(t, "changed") {
					want = drawSpec(t)
					if rapid.Bool().Draw(t, "claims same") {
						want.Volumes = rec.Spec.Volumes
					}
				}
				d.Sandboxes = append(d.Sandboxes, config.Resource[config.Sandbox]{Address: a, Spec: want, Lifecycle: drawLife(t)})
			}
		}
		if known == "declared" || known == "ended" {
			s := drawSpec(t)
			d.Sandboxes = append(d.Sandboxes, config.Resource[config.Sandbox]{Address: a, Spec: s, Lifecycle: drawLife(t)})
			if known == "ended" {
				in.Records.Ended[a] = &Ended{Address: a, UID: "uid-old", Reason: pick(t, "ended", "ttl_expiry", "shutdown_time", "lost"),
					Deadline: moment(t, "ended deadline"), ShutdownTime: moment(t, "ended shutdown_time"), TTL: config.Duration(time.Hour), At: t0.Add(-time.Hour)}
			}
		}
	}
	for i := range d.Sandboxes {
		d.Sandboxes[i].DependsOn = references(&d.Sandboxes[i].Spec)
		if i > 0 && pick(t, "depends", false, false, true) {
			d.Sandboxes[i].DependsOn = append(d.Sandboxes[i].DependsOn, d.Sandboxes[i-1].Address)
		}
		if by := pick(t, "triggered by", "", "", "", "network.a", "image.base", "volume.a", "sandbox"); by != "" {
			if by == "sandbox" {
				by = d.Sandboxes[max(0, i-1)].Address
			}
			d.Sandboxes[i].Lifecycle.ReplaceTriggeredBy = []config.Trigger{{Address: by, Path: pick(t, "trigger path", "", "", "cidr", "command", "instance_id", "address")}}
		}
	}
	for _, a := range []string{"image.base", "image.other"} {
		src := pick(t, "source", "host", "host", "dir:/x")
		d.Images = append(d.Images, config.Resource[config.Image]{Address: a, Spec: config.Image{Source: src}})
		if pick(t, "image known", true, true, false) {
			in.Records.Images[a] = &Image{Address: a, Spec: config.Image{Source: "host"}, Digest: "digest of host"}
		}
	}
	for _, rec := range in.Records.Sandboxes {
		if rec.Instance != nil && in.Records.Images[rec.Spec.Image] == nil {
			rec.Instance.Image = "" // an image in use is always recorded
		}
	}
	for _, a := range []string{"network.a", "network.b", "network.c"} {
		cidr := map[string]string{"network.a": "10.88.0.0/24", "network.b": "10.89.0.0/24", "network.c": "10.88.0.0/25"}[a]
		declared := a != "network.c"
		if declared {
			d.Networks = append(d.Networks, config.Resource[config.Network]{Address: a, Spec: config.Network{CIDR: pick(t, "cidr", cidr, cidr, "", "10.99.0.0/24"), Internet: rapid.Bool().Draw(t, "internet")}})
		}
		if pick(t, "network known", true, true, false) {
			n := &Network{Address: a, ID: "n-" + a, Spec: config.Network{CIDR: cidr}, CIDR: netip.MustParsePrefix(cidr), Made: pick(t, "made", true, true, false)}
			in.Records.Networks[a] = n
			if pick(t, "network there", true, true, false) {
				in.Observed.Networks[n.ID] = SeenNetwork{Exists: true, Missing: pick(t, "network missing", nil, nil, []string{"rules"})}
			}
		}
	}
	for _, a := range []string{"volume.a", "volume.b"} {
		d.Volumes = append(d.Volumes, config.Resource[config.Volume]{Address: a})
		if pick(t, "volume known", true, true, false) {
			in.Records.Volumes[a] = &Volume{Address: a, ID: "v-" + a, Made: pick(t, "volume made", true, false)}
			in.Observed.Volumes["v-"+a] = pick(t, "volume there", true, true, false)
		}
	}
	if rapid.Bool().Draw(t, "output") {
		d.Outputs = []config.Output{{Name: "o", Value: []byte(pick(t, "value", `"1"`, `"2"`))}}
	}
	if rapid.Bool().Draw(t, "output known") {
		in.Records.Outputs["o"] = &config.Output{Name: "o", Value: []byte(`"1"`)}
	}
	if rapid.Bool().Draw(t, "watched") {
		in.Activity = map[string]Activity{}
		for i := range 4 {
			in.Activity[fmt.Sprint("sandbox.s", i)] = Activity{Last: moment(t, "used"), Busy: pick(t, "busy", false, false, true)}
		}
	}
	in.Limits.ExpiryWarning = pick(t, "warning", 0, 15*time.Minute, 2*time.Hour)
	if rapid.Bool().Draw(t, "orphan") {
		in.Observed.Instances["i-orphan"] = drawSeen(t, "uid-nobody")
	}
	return in
}

func drawTrigger(t *rapid.T, in *Input) {
	in.Trigger = pick(t, "trigger", Apply, Apply, Keep)
	if pick(t, "no files", false, false, true) {
		in.Desired = nil
	}
}

func drawOptions(t *rapid.T, in *Input) {
	o := &in.Options
	o.Destroy = pick(t, "destroy", false, false, false, true)
	o.Targets = pick(t, "targets", nil, nil, nil, []string{"sandbox.s1"}, []string{"network.a"}, []string{"nothing"})
	o.Excludes = pick(t, "excludes", nil, nil, nil, []string{"sandbox.s0"}, []string{"network.b"})
	o.Replace = pick(t, "replace", nil, nil, nil, []string{"sandbox.s0"})
	o.RefreshOnly = pick(t, "refresh only", false, false, false, false, true)
	o.NoRefresh = pick(t, "no refresh", false, false, false, false, true)
	o.ReleaseHolds = pick(t, "release", false, false, true)
	o.NoStart = pick(t, "no start", false, false, true)
	in.Limits.MaxLifetime = pick(t, "max", 0, 0, 0, 2*time.Hour)
}

// An applied plan leaves nothing to do, and every step it takes is legal.
func TestApplyingLeavesNothingToDo(t *testing.T) { rapid.Check(t, leavesNothingToDo) }

func leavesNothingToDo(t *rapid.T) {
	in := drawWorld(t)
	drawTrigger(t, &in)
	in.Options.ReleaseHolds = rapid.Bool().Draw(t, "release holds")
	in.Options.NoStart = !in.Options.ReleaseHolds && rapid.Bool().Draw(t, "no start")
	in.Options.Destroy = pick(t, "destroy", false, false, false, true)
	in.Options.Replace = pick(t, "replace", nil, nil, []string{"sandbox.s0"})
	in = clone(in)
	first := Make(in)
	if first.Diags.HasErrors() {
		return
	}
	wait := anyDying(in)
	m := &model{Input: &in}
	m.run(first)
	if len(m.wrong) > 0 {
		t.Fatalf("illegal steps:\n%s\nin\n%s", strings.Join(m.wrong, "\n"), first)
	}
	in.Options.Replace = nil
	if slices.ContainsFunc(first.Changes, func(c Change) bool { return c.Action == ActExpire }) {
		in.Options.ReleaseHolds = false // asked again, it would release what this plan let expire
	}
	second := warned(m)
	// What waits for something to finish dying may go on in a later round.
	for round := 0; wait && len(second.Changes) > 0 && round < 4; round++ {
		m.run(second)
		second = warned(m)
	}
	if wait && second.Diags.HasErrors() {
		return // refused, now that it is its turn
	}
	if second.Diags.HasErrors() && slices.ContainsFunc(first.Notes, func(n string) bool { return strings.Contains(n, " is not replaced yet: ") }) {
		return // what moved onto it meanwhile keeps it from being replaced
	}
	if !second.Empty() || second.Diags.HasErrors() || slices.ContainsFunc(second.Changes, func(c Change) bool { return true }) {
		t.Fatalf("first plan\n%s\nleaves a second\n%s", first, second)
	}
}

// The order of the declaration's lists and of maps changes nothing, to the byte.
func TestOrderOfInputChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawWorld(t)
		drawTrigger(t, &in)
		drawOptions(t, &in)
		first := Make(in)
		if in.Desired != nil {
			d := *in.Desired
			r := rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed")))
			shuffle := func(n int, swap func(i, j int)) { r.Shuffle(n, swap) }
			d.Sandboxes, d.Networks = slices.Clone(d.Sandboxes), slices.Clone(d.Networks)
			d.Volumes, d.Images = slices.Clone(d.Volumes), slices.Clone(d.Images)
			shuffle(len(d.Sandboxes), func(i, j int) { d.Sandboxes[i], d.Sandboxes[j] = d.Sandboxes[j], d.Sandboxes[i] })
			shuffle(len(d.Networks), func(i, j int) { d.Networks[i], d.Networks[j] = d.Networks[j], d.Networks[i] })
			shuffle(len(d.Volumes), func(i, j int) { d.Volumes[i], d.Volumes[j] = d.Volumes[j], d.Volumes[i] })
			shuffle(len(d.Images), func(i, j int) { d.Images[i], d.Images[j] = d.Images[j], d.Images[i] })
			in.Desired = &d
		}
		second := Make(clone(in))
		a, err := json.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(second)
		if err != nil {
			t.Fatal(err)
		}
		if string(a) != string(b) {
			t.Fatalf("\n%s\nbecomes\n%s", a, b)
		}
		if fmt.Sprint(first.Status) == "" || len(first.Status) != len(second.Status) {
			t.Fatalf("status %v becomes %v", first.Status, second.Status)
		}
	})
}

// Between two looks nothing falls due: at any instant before WakeAt an applied
// world has nothing to do, and at WakeAt it has, or asks for a later look.
func TestWakeIsNeverLate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawWorld(t)
		drawTrigger(t, &in)
		in = clone(in)
		first := Make(in)
		if first.Diags.HasErrors() {
			return
		}
		wait := anyDying(in)
		if !first.WakeAt.IsZero() && !first.WakeAt.After(in.Now) {
			t.Fatalf("wakes in the past:\n%s", first)
		}
		m := &model{Input: &in}
		m.run(first)
		rest := warned(m)
		for round := 0; wait && len(rest.Changes) > 0 && round < 4; round++ {
			m.run(rest)
			rest = warned(m)
		}
		horizon := 48 * time.Hour
		if !rest.WakeAt.IsZero() {
			horizon = rest.WakeAt.Sub(in.Now)
		}
		in.Now = t0.Add(time.Duration(rapid.Int64Range(0, int64(horizon)-1).Draw(t, "ahead")))
		if early := Make(in); len(early.Changes) > 0 {
			t.Fatalf("at %s there is something to do:\n%s\nalthough it asked only for %s after\n%s and\n%s", stamp(in.Now), early, stamp(rest.WakeAt), first, rest)
		}
		if !rest.WakeAt.IsZero() {
			in.Now = rest.WakeAt
			if due := Make(in); len(due.Changes) == 0 && !due.WakeAt.After(in.Now) && !due.WakeAt.IsZero() {
				t.Fatalf("at the moment it asked for there is nothing to do:\n%s", due)
			} else if due.Empty() && due.WakeAt.IsZero() {
				t.Fatalf("woke at %s for nothing after\n%s and\n%s and\n%s", stamp(in.Now), first, rest, due)
			}
		}
	})
}

// Whatever is drawn has a plan; it speaks only of what is declared or recorded,
// of instances that are the record's own, and only in the scope asked for; the
// agent never acts on behalf of files; each change waits only for earlier ones.
func TestPlansStayInBounds(t *testing.T) { rapid.Check(t, staysInBounds) }

func staysInBounds(t *rapid.T) {
	in := drawWorld(t)
	drawTrigger(t, &in)
	drawOptions(t, &in)
	before := encode(in)
	p := Make(in)
	if after := encode(in); string(after) != string(before) {
		t.Fatalf("Make changed its input from\n%s\nto\n%s", before, after)
	}
	done, deposes, ups := map[string]bool{}, map[string]bool{}, map[string]string{}
	for _, c := range p.Changes {
		if in.Trigger == Keep && c.Origin != FromHost {
			t.Fatalf("the agent acts for files: %s", c)
		}
		if c.Deposed != "" && (c.Kind != "sandbox" || c.Action != ActDelete || c.Instance != "" || c.Reason == replacedBy && !deposes[c.Deposed]) {
			t.Fatalf("takes away what is not deposed: %s in\n%s", c, p)
		}
		if c.CreateFirst {
			deposes[c.Instance] = true
		}
		if c.Instance != "" {
			rec := in.Records.Sandboxes[c.Address]
			own := rec != nil && rec.Instance != nil && rec.Instance.ID == c.Instance
			if rec != nil && (slices.Contains(rec.Doomed, c.Instance) || rec.DeposedAt(c.Instance) >= 0) {
				t.Fatalf("goes on with an instance that is to go: %s", c)
			}
			// Until a replacement that comes first is ready nothing is done to the old one.
			if ups[c.Instance] != "" && c.CreateFirst {
				t.Fatalf("%s although before it does %s in\n%s", c, ups[c.Instance], p)
			}
			switch c.Action {
			case ActSuspend, ActStop, ActPause, ActRestart, ActExpire, ActDelete, ActRecreate:
				ups[c.Instance] = string(c.Action)
			}
			if !own && (rec == nil || rec.UID == "" || in.Observed.Instances[c.Instance].UID != rec.UID) {
				t.Fatalf("touches an instance that is not its own: %s", c)
			}
		}
		if c.Kind == "sandbox" && c.Action != ActCreate && in.Records.Sandboxes[c.Address] == nil && in.Records.Ended[c.Address] == nil {
			t.Fatalf("touches what is not recorded: %s", c)
		}
		if c.Cause == "" || c.Consequence == "" || (c.Origin != FromFiles && c.Origin != FromHost) {
			t.Fatalf("does not say why and what: %s", c)
		}
		for _, d := range c.DependsOn {
			if !done[d] {
				t.Fatalf("%s waits for %s, which comes later:\n%s", c, d, p)
			}
		}
		done[c.Address] = true
	}
	checkDeposed(t, &in, p)
	if in.Options.RefreshOnly && len(p.Changes) > 0 {
		t.Fatalf("-refresh-only changes something:\n%s", p)
	}
	for a, st := range p.Status {
		rec := in.Records.Sandboxes[a]
		if len(st.Conditions) != len(Types) {
			t.Fatalf("%s has %d conditions", a, len(st.Conditions))
		}
		if seen, ok := in.Observed.Instances[instanceOf(rec)]; ok && seen.Unknown != "" {
			for _, c := range p.Changes {
				if c.Address == a && c.Deposed == "" {
					t.Fatalf("acts without having been able to look: %s", c)
				}
			}
			if st.Phase != rec.phase() || st.Conditions[0].Status != "Unknown" {
				t.Fatalf("%s could not be looked at and is %s, Ready %s", a, st.Phase, st.Conditions[0].Status)
			}
		}
	}
}

// checkDeposed: what is deposed is always planned for removal, unless the agent waits
// to try again, and so is what this plan deposes.
func checkDeposed(t *rapid.T, in *Input, p *Plan) {
	removed, ended, deposes := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i := range p.Changes {
		c := &p.Changes[i]
		removed[c.Deposed] = true
		ended[c.Address] = ended[c.Address] || c.endsRecord()
		if c.CreateFirst {
			deposes[c.Instance] = true
		}
	}
	for id := range deposes {
		if !removed[id] {
			t.Fatalf("deposes %s for good:\n%s", id, p)
		}
	}
	if in.Options.RefreshOnly || len(in.Options.Targets)+len(in.Options.Excludes) > 0 {
		return
	}
	for a, rec := range in.Records.Sandboxes {
		for _, d := range rec.Deposed {
			waits := in.Trigger == Keep && d.Retry.Error != "" && in.Now.Before(d.Retry.NextAt)
			if !removed[d.Instance.ID] && !ended[a] && !waits {
				t.Fatalf("deposed %s of %s is not planned for removal in\n%s", d.Instance.ID, a, p)
			}
			if waits && !ended[a] && (p.WakeAt.IsZero() || p.WakeAt.After(d.Retry.NextAt)) {
				t.Fatalf("deposed %s of %s is due at %s, but it wakes at %s", d.Instance.ID, a, stamp(d.Retry.NextAt), stamp(p.WakeAt))
			}
		}
	}
}

// warned plans, after the events that tell of deadlines that a plan before gave.
func warned(m *model) *Plan {
	p := Make(*m.Input)
	if len(p.Changes) == 0 || slices.ContainsFunc(p.Changes, func(c Change) bool { return c.Warn.IsZero() }) {
		return p
	}
	m.run(p)
	return Make(*m.Input)
}

func anyDying(in Input) bool {
	for _, s := range in.Observed.Instances {
		if s.Dying {
			return true
		}
	}
	return false
}

// operators is the part of a hold that is an operator's own.
func operators(h *Hold) *Hold {
	for h != nil && (h.By == "idle" || h.By == "expiry") {
		h = h.Under
	}
	return h
}

// No rule lifts an operator's hold: not idleness nor its end, not an expiry nor its
// end, not a restart. Only the files' newer mode and -release-holds do, or the
// sandbox's own end.
func TestRulesNeverLiftAnOperatorsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawWorld(t)
		drawTrigger(t, &in)
		in = clone(in)
		before := map[string]*Hold{}
		for a, rec := range in.Records.Sandboxes {
			before[a] = operators(rec.Hold)
		}
		m := &model{Input: &in}
		for round := range 3 {
			p := Make(in)
			if p.Diags.HasErrors() {
				return
			}
			m.run(p)
			for a, rec := range in.Records.Sandboxes {
				moded := slices.ContainsFunc(p.Changes, func(c Change) bool {
					return c.Address == a && c.Action == ActRelease && c.Cause == "operating_mode changed"
				})
				if moded {
					before[a] = operators(rec.Hold)
				}
				if had, known := before[a]; known && had != nil && operators(rec.Hold) != had {
					t.Fatalf("round %d: %s was held %s by %s and now %+v, after\n%s", round, a, had.Mode, had.By, rec.Hold, p)
				}
				before[a] = operators(rec.Hold)
			}
			if !p.WakeAt.IsZero() {
				in.Now = p.WakeAt
			}
		}
	})
}

// One plan moves a process in one direction: what it starts or wakes it does not
// put to rest by a rule, what expires is not idle as well, and there is one rest.
func TestStepsOfOnePlanDoNotFightEachOther(t *testing.T) { rapid.Check(t, stepsDoNotFight) }

func stepsDoNotFight(t *rapid.T) {
	in := drawWorld(t)
	drawTrigger(t, &in)
	drawOptions(t, &in)
	p := Make(in)
	moves := map[string][]Action{}
	for _, c := range p.Changes {
		if c.Kind != "sandbox" || c.Reason == takenDown || c.Deposed != "" {
			continue
		}
		switch c.Action {
		case ActCreate, ActRestart, ActReplace, ActDelete, ActStart, ActStop, ActSuspend, ActPause, ActResume, ActExpire, ActRecreate:
			moves[c.Address] = append(moves[c.Address], c.Action)
		}
	}
	for a, list := range moves {
		switch {
		case len(list) == 1:
		case slices.Equal(list, []Action{ActStart, ActPause}): // paused is started, then frozen
		case slices.Equal(list, []Action{ActReplace, ActExpire}): // replaced without a process, and marked as ended
		default:
			t.Fatalf("%s is to %v in\n%s", a, list, p)
		}
		if list[0] == ActStart && len(list) == 2 && slices.ContainsFunc(p.Changes, func(c Change) bool { return c.Address == a && c.Hold != nil && c.Action == ActPause }) {
			t.Fatalf("%s is started and idle in\n%s", a, p)
		}
	}
}

// Nobody is woken in a loop: a world that is left alone asks to be looked at later
// and later, each time for something.
func TestNoBusyLoop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawWorld(t)
		in.Trigger = Keep
		for a, use := range in.Activity {
			use.Busy = false // what is in use is looked at as often as it could be idle
			in.Activity[a] = use
		}
		for id, s := range in.Observed.Instances {
			if s.Dying || s.Unknown != "" {
				delete(in.Observed.Instances, id) // looked at again and again until it changes
			}
		}
		in = clone(in)
		m := &model{Input: &in}
		for range 40 {
			p := Make(in)
			m.run(p)
			if p.WakeAt.IsZero() && len(p.Changes) == 0 {
				return
			}
			if len(p.Changes) == 0 {
				in.Now = p.WakeAt
			}
		}
		t.Fatalf("it never comes to rest:\n%s", Make(in))
	})
}
