package plan

import (
	"net/netip"
	"strings"
	"time"

	"pinfold/config"
)

// t0 is the moment most tests plan at.
var t0 = time.Date(2026, 12, 1, 8, 30, 0, 0, time.UTC)

const boot = "boot-1"

func spec(edit ...func(*config.Sandbox)) config.Sandbox {
	s := config.Sandbox{
		Image:          "image.base",
		Command:        []string{"sleep", "1d"},
		OperatingMode:  "running",
		ShutdownPolicy: "retain",
		Security:       config.Security{UserNamespace: true},
		Lifetime:       config.Lifetime{OnLost: "recreate", StartTimeout: config.Duration(5 * time.Minute)},
	}
	for _, e := range edit {
		e(&s)
	}
	return s
}

func mode(m string) func(*config.Sandbox)   { return func(s *config.Sandbox) { s.OperatingMode = m } }
func policy(p string) func(*config.Sandbox) { return func(s *config.Sandbox) { s.ShutdownPolicy = p } }
func onLost(p string) func(*config.Sandbox) { return func(s *config.Sandbox) { s.Lifetime.OnLost = p } }
func shutdown(t time.Time) func(*config.Sandbox) {
	return func(s *config.Sandbox) { s.ShutdownTime = t }
}
func ttl(d time.Duration) func(*config.Sandbox) {
	return func(s *config.Sandbox) { s.Lifetime.TTL = config.Duration(d) }
}
func command(c ...string) func(*config.Sandbox) { return func(s *config.Sandbox) { s.Command = c } }
func env(k, v string) func(*config.Sandbox) {
	return func(s *config.Sandbox) { s.Env = map[string]string{k: v} }
}
func on(network string) func(*config.Sandbox) {
	return func(s *config.Sandbox) { s.Network = &config.Attachment{Name: network} }
}
func claim(name string) func(*config.Sandbox) {
	return func(s *config.Sandbox) { s.Volumes = map[string]config.Claim{name: {Path: "/" + name}} }
}
func mount(volume string) func(*config.Sandbox) {
	return func(s *config.Sandbox) { s.Mounts = []config.Mount{{Volume: volume, Path: "/data"}} }
}
func labels(k, v string) func(*config.Sandbox) {
	return func(s *config.Sandbox) { s.Labels = map[string]string{k: v} }
}

// world is an input under construction, with the image every sandbox uses.
type world struct{ Input }

func newWorld() *world {
	w := &world{Input{
		Records: Records{
			Sandboxes: map[string]*Sandbox{}, Networks: map[string]*Network{}, Volumes: map[string]*Volume{},
			Images:  map[string]*Image{"image.base": {Address: "image.base", Spec: config.Image{Source: "host"}, Digest: "host"}},
			Outputs: map[string]*config.Output{}, Ended: map[string]*Ended{},
		},
		Observed: Observed{BootID: boot, Instances: map[string]Seen{}, Networks: map[string]SeenNetwork{}, Volumes: map[string]bool{}},
		Now:      t0,
		Trigger:  Apply,
	}}
	w.Desired = &config.Desired{Images: []config.Resource[config.Image]{{Address: "image.base", Spec: config.Image{Source: "host"}}}}
	return w
}

// declare adds a sandbox to the files.
func (w *world) declare(address string, s config.Sandbox, edit ...func(*config.Resource[config.Sandbox])) *world {
	r := config.Resource[config.Sandbox]{Address: address, Spec: s, DependsOn: references(&s)}
	for _, e := range edit {
		e(&r)
	}
	w.Desired.Sandboxes = append(w.Desired.Sandboxes, r)
	return w
}

// record adds a running sandbox made an hour ago, seen in its recorded phase.
func (w *world) record(address string, s config.Sandbox, edit ...func(*Sandbox, *Seen)) *world {
	name := address[strings.LastIndex(address, ".")+1:]
	rec := &Sandbox{
		Address: address, UID: "uid-" + name, Generation: 1, Spec: s, CreatedAt: t0.Add(-time.Hour),
		Lease:    StartLease(&s, t0.Add(-time.Hour)),
		Instance: &Instance{ID: "i-" + name, Phase: Running, PID: 100, StartTime: 7, BootID: boot, CreatedAt: t0.Add(-time.Hour), StartedAt: t0.Add(-time.Hour), RunningSpec: 1},
	}
	if s.Network != nil {
		rec.Net = &Net{Network: s.Network.Name, Address: netip.MustParseAddr("10.88.0.5")}
	}
	for n := range s.Volumes {
		if rec.Claim == nil {
			rec.Claim = map[string]string{}
		}
		rec.Claim[n] = "v-" + name + "-" + n
		w.Observed.Volumes[rec.Claim[n]] = true
	}
	seen := Seen{UID: rec.UID, Layer: true, Alive: true, Started: true, PID: 100, StartTime: 7}
	for _, e := range edit {
		e(rec, &seen)
	}
	w.Records.Sandboxes[address] = rec
	if rec.Instance != nil {
		w.Observed.Instances[rec.Instance.ID] = seen
	}
	return w
}

// both declares and records the same sandbox.
func (w *world) both(address string, s config.Sandbox, edit ...func(*Sandbox, *Seen)) *world {
	return w.declare(address, s).record(address, s, edit...)
}

func (w *world) network(address, cidr string) *world {
	id := "n-" + address
	w.Desired.Networks = append(w.Desired.Networks, config.Resource[config.Network]{Address: address, Spec: config.Network{CIDR: cidr}})
	w.Records.Networks[address] = &Network{Address: address, ID: id, Spec: config.Network{CIDR: cidr}, CIDR: netip.MustParsePrefix(cidr), Made: true}
	w.Observed.Networks[id] = SeenNetwork{Exists: true}
	return w
}

func (w *world) volume(address string) *world {
	id := "v-" + address
	w.Desired.Volumes = append(w.Desired.Volumes, config.Resource[config.Volume]{Address: address})
	w.Records.Volumes[address] = &Volume{Address: address, ID: id, Made: true}
	w.Observed.Volumes[id] = true
	return w
}

func (w *world) at(now time.Time) *world      { w.Now = now; return w }
func (w *world) keep() *world                 { w.Trigger = Keep; return w }
func (w *world) with(f func(*Options)) *world { f(&w.Options); return w }

// Edits of a record and of what is seen of it.

func in(p Phase) func(*Sandbox, *Seen) {
	return func(s *Sandbox, seen *Seen) {
		s.Instance.Phase = p
		seen.Alive, seen.Started, seen.Frozen = p.live(), p == Running || p == Paused, p == Paused
		if !p.live() {
			s.Instance.PID, s.Instance.StartTime, seen.PID, seen.StartTime = 0, 0, 0, 0
		}
	}
}

func stoppedBy(why string) func(*Sandbox, *Seen) {
	return func(s *Sandbox, seen *Seen) {
		in(Stopped)(s, seen)
		s.Instance.StoppedBy = why
	}
}

func exited(code int) func(*Sandbox, *Seen) {
	return func(s *Sandbox, seen *Seen) {
		stoppedBy(ByExit)(s, seen)
		s.Instance.Outcome = &Outcome{ExitCode: code, Reason: "exited", At: t0.Add(-time.Minute)}
	}
}

// gone: recorded live, but nothing lives any more.
func gone(s *Sandbox, seen *Seen) { *seen = Seen{UID: s.UID, Layer: true} }

// ended: recorded live, found with this outcome.
func foundEnded(o Outcome) func(*Sandbox, *Seen) {
	return func(s *Sandbox, seen *Seen) {
		gone(s, seen)
		o.At = t0.Add(-time.Second)
		seen.Outcome = &o
	}
}

func held(m string) func(*Sandbox, *Seen) {
	return func(s *Sandbox, _ *Seen) { s.Hold = &Hold{Mode: m, By: "operator", At: t0.Add(-18 * time.Minute)} }
}

func pending(s *Sandbox, _ *Seen) { s.Instance, s.Lease = nil, Lease{} }

func missing(m ...string) func(*Sandbox, *Seen) {
	return func(_ *Sandbox, seen *Seen) { seen.Missing = m }
}

func unknown(s *Sandbox, seen *Seen) { *seen = Seen{UID: s.UID, Unknown: "permission denied"} }

func expiredAt(d time.Time, reason string, done bool) func(*Sandbox, *Seen) {
	return func(s *Sandbox, seen *Seen) {
		if done {
			stoppedBy(ByExpiry)(s, seen)
		}
		s.Expired = &Expired{Deadline: d, Reason: reason, At: d, Done: done}
	}
}

// Rules of life of a spec, and what they leave in a record.

func idle(d time.Duration) func(*config.Sandbox) {
	return func(s *config.Sandbox) { s.Lifetime.IdleTimeout = config.Duration(d) }
}
func idleSuspends(s *config.Sandbox) { s.Lifetime.IdleAction = "suspend" }
func renewOnAccess(d time.Duration) func(*config.Sandbox) {
	return func(s *config.Sandbox) { s.Lifetime.RenewOnAccess = config.Duration(d) }
}
func clockRuns(s *config.Sandbox) { s.Lifetime.Clock = "running" }
func restartMode(mode string, attempts int) func(*config.Sandbox) {
	return func(s *config.Sandbox) { s.Restart.Mode, s.Restart.MaxAttempts = mode, attempts }
}
func probed(s *config.Sandbox) { s.Health = &config.Health{TCP: 80, Retries: 3} }

// heldBy is a hold by the idle rule or an expiry, over what hold there is.
func heldBy(by, mode string) func(*Sandbox, *Seen) {
	return func(s *Sandbox, _ *Seen) {
		s.Hold = &Hold{Mode: mode, By: by, At: t0.Add(-18 * time.Minute), Under: s.Hold}
	}
}

// expiredPaused is a sandbox that expired at d and was frozen then.
func expiredPaused(d time.Time, reason string) func(*Sandbox, *Seen) {
	return func(s *Sandbox, seen *Seen) {
		in(Paused)(s, seen)
		s.Expired = &Expired{Deadline: d, Reason: reason, At: d, Done: true, Paused: true}
		s.Lease = s.Lease.OnExpiry(&s.Spec, d, d)
		heldBy("expiry", "paused")(s, seen)
	}
}

func restarted(n int, next time.Time) func(*Sandbox, *Seen) {
	return func(s *Sandbox, _ *Seen) {
		s.Restarts = Retry{Attempts: n, Since: t0.Add(-time.Minute), NextAt: next}
	}
}

// startedAt moves the start of its process.
func startedAt(at time.Time) func(*Sandbox, *Seen) {
	return func(s *Sandbox, _ *Seen) { s.Instance.StartedAt, s.Instance.CreatedAt = at, at }
}

func (w *world) used(address string, a Activity) *world {
	if w.Activity == nil {
		w.Activity = map[string]Activity{}
	}
	w.Activity[address] = a
	return w
}

// watched is a world whose use somebody watches, and nothing was used.
func (w *world) watched() *world { return w.used("sandbox.nobody", Activity{}) }

func (w *world) warns(d time.Duration) *world { w.Limits.ExpiryWarning = d; return w }

func retry(r Retry) func(*Sandbox, *Seen) { return func(s *Sandbox, _ *Seen) { s.Retry = r } }
