package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"pinfold/config"
)

// model carries out plans on an Input, as an executor on a faultless host would:
// the records and what is observed change, nothing else exists. It reports steps
// that the transition table forbids.
type model struct {
	*Input
	made  int
	wrong []string
}

// clone copies an input so that the model may change it.
func clone(in Input) Input {
	r := &in.Records
	r.Sandboxes = maps.Clone(r.Sandboxes)
	for a, s := range r.Sandboxes {
		c := *s
		if c.Instance != nil {
			i := *c.Instance
			c.Instance = &i
		}
		r.Sandboxes[a] = &c
	}
	r.Networks, r.Volumes, r.Images = copied(r.Networks), copied(r.Volumes), copied(r.Images)
	r.Outputs, r.Ended = maps.Clone(r.Outputs), maps.Clone(r.Ended)
	in.Observed.Instances, in.Observed.Networks, in.Observed.Volumes = maps.Clone(in.Observed.Instances), maps.Clone(in.Observed.Networks), maps.Clone(in.Observed.Volumes)
	return in
}

func copied[T any](m map[string]*T) map[string]*T {
	out := map[string]*T{}
	for k, v := range m {
		c := *v
		out[k] = &c
	}
	return out
}

func (m *model) id(prefix string) string {
	m.made++
	return fmt.Sprintf("%s-new%d", prefix, m.made)
}

func find1[T any](rs []config.Resource[T], a string) *config.Resource[T] {
	i := slices.IndexFunc(rs, func(r config.Resource[T]) bool { return r.Address == a })
	if i < 0 {
		return nil
	}
	return &rs[i]
}

// run carries out a whole plan.
func (m *model) run(p *Plan) {
	for a, st := range p.Status {
		rec := m.Records.Sandboxes[a]
		if rec.Instance == nil && st.Rebind != "" {
			rec.Instance = &Instance{}
		}
		rec.Conditions = st.Conditions
		if i := rec.Instance; i != nil {
			if st.Rebind != "" {
				*i = Instance{ID: st.Rebind, BootID: m.Observed.BootID, CreatedAt: i.CreatedAt, StartedAt: i.StartedAt}
			}
			i.Phase, i.StoppedBy, i.Outcome, i.PID, i.StartTime = st.Phase, st.StoppedBy, st.Outcome, st.PID, st.StartTime
		}
	}
	for i := range p.Changes {
		c := &p.Changes[i]
		switch c.Kind {
		case "sandbox":
			m.sandbox(c)
		case "network":
			m.network(c)
		case "volume":
			m.volume(c)
		case "image":
			m.image(c)
		case "output":
			m.output(c)
		}
	}
}

func (m *model) image(c *Change) {
	switch c.Action {
	case ActDelete:
		delete(m.Records.Images, c.Address)
	case ActCreate, ActUpdate:
		d := find1(m.Desired.Images, c.Address)
		m.Records.Images[c.Address] = &Image{Address: c.Address, Spec: d.Spec, Digest: "digest of " + d.Spec.Source, Lifecycle: d.Lifecycle}
	}
}

func (m *model) network(c *Change) {
	rec := m.Records.Networks[c.Address]
	if c.Action == ActDelete || c.Action == ActReplace {
		for a, s := range m.Records.Sandboxes {
			if s.Spec.Network != nil && s.Spec.Network.Name == c.Address && s.phase().live() && m.Observed.Instances[s.Instance.ID].Alive {
				m.wrong = append(m.wrong, c.String()+": still used by "+a)
			}
			for _, d := range s.Deposed {
				if d.Net != nil && d.Net.Network == c.Address {
					m.wrong = append(m.wrong, c.String()+": still used by deposed "+d.Instance.ID+" of "+a)
				}
			}
		}
	}
	switch c.Action {
	case ActDelete:
		delete(m.Records.Networks, c.Address)
		delete(m.Observed.Networks, rec.ID)
		return
	case ActRepair:
		m.Observed.Networks[rec.ID] = SeenNetwork{Exists: true}
		return
	}
	if rec == nil {
		rec = &Network{Address: c.Address, ID: m.id("n")}
		m.Records.Networks[c.Address] = rec
	}
	if c.After != nil {
		d := find1(m.Desired.Networks, c.Address)
		rec.Spec, rec.Lifecycle = d.Spec, d.Lifecycle
	}
	if p, err := netip.ParsePrefix(rec.Spec.CIDR); err == nil {
		rec.CIDR = p
	} else if !rec.CIDR.IsValid() {
		rec.CIDR = netip.MustParsePrefix("10.88.9.0/24")
	}
	if c.Action == ActReplace {
		rec.ID = m.id("n")
	}
	rec.Made = true
	if c.Action != ActUpdate {
		m.Observed.Networks[rec.ID] = SeenNetwork{Exists: true}
	}
}

func (m *model) volume(c *Change) {
	rec := m.Records.Volumes[c.Address]
	switch c.Action {
	case ActDelete:
		delete(m.Records.Volumes, c.Address)
		delete(m.Observed.Volumes, rec.ID)
		return
	case ActCreate:
		if rec == nil {
			rec = &Volume{Address: c.Address, ID: m.id("v")}
			m.Records.Volumes[c.Address] = rec
		}
	}
	if c.After != nil {
		rec.Lifecycle = find1(m.Desired.Volumes, c.Address).Lifecycle
	}
	rec.Made = true
	m.Observed.Volumes[rec.ID] = true
}

func (m *model) output(c *Change) {
	name := c.Address[len("output."):]
	if c.Action == ActDelete {
		delete(m.Records.Outputs, name)
		return
	}
	for i := range m.Desired.Outputs {
		if o := m.Desired.Outputs[i]; o.Name == name {
			m.Records.Outputs[name] = &o
		}
	}
}

func (m *model) sandbox(c *Change) {
	rec := m.Records.Sandboxes[c.Address]
	if rec == nil && c.Action == ActCreate {
		rec = &Sandbox{Address: c.Address, UID: m.id("uid"), CreatedAt: m.Now}
		m.Records.Sandboxes[c.Address] = rec
		delete(m.Records.Ended, c.Address)
	}
	if rec == nil {
		if c.Action == ActForget {
			delete(m.Records.Ended, c.Address)
			return
		}
		m.wrong = append(m.wrong, c.String()+": there is no such record")
		return
	}
	if c.Deposed != "" {
		i := rec.DeposedAt(c.Deposed)
		if i < 0 {
			m.wrong = append(m.wrong, c.String()+": there is no such deposed instance")
			return
		}
		delete(m.Observed.Instances, c.Deposed)
		rec.Deposed = slices.Delete(slices.Clone(rec.Deposed), i, i+1)
		return
	}
	before := rec.Lease
	if c.After != nil {
		Adopt(rec, find1(m.Desired.Sandboxes, c.Address), c)
	}
	if c.Revive {
		Revive(rec)
		rec.LastActivity = m.Now
	}
	move := func(v Verb) {
		to, err := TransitionOf(c.Address, rec.phase(), v)
		if err != nil {
			m.wrong = append(m.wrong, c.String()+": "+err.Error())
		}
		if rec.Instance == nil {
			rec.Instance = &Instance{}
		}
		rec.Instance.Phase = to
	}
	down := func(by string) {
		i := rec.Instance
		i.PID, i.StartTime = 0, 0
		if i.StoppedBy == "" {
			i.StoppedBy, i.Outcome = by, &Outcome{Reason: by, At: m.Now}
		}
		m.Observed.Instances[i.ID] = Seen{UID: rec.UID, Layer: true}
	}
	frozen := func() { rec.Lease = rec.Lease.OnPause(&rec.Spec) }
	woken := func() {
		rec.LastActivity = m.Now
		if l, err := rec.Lease.OnResume(rec, nil, m.Now, m.Limits.MaxLifetime); err == nil {
			rec.Lease = l
		}
	}
	up := func() {
		i := rec.Instance
		i.PID, i.StartTime, i.BootID, i.StoppedBy, i.Outcome, i.OOMKills, i.RunningSpec = 200, 9, m.Observed.BootID, "", nil, 0, rec.Generation
		i.StartedAt = m.Now
		m.Observed.Instances[i.ID] = Seen{UID: rec.UID, Layer: true, Alive: true, Started: i.Phase != Created, Frozen: i.Phase == Paused, PID: 200, StartTime: 9}
	}
	toMode := func(mode string) {
		switch mode {
		case "created":
			up()
			if c.Action == ActCreate && rec.Hold == nil {
				rec.Hold = &Hold{Mode: "created", By: "apply", At: m.Now}
			}
		case "running":
			move(VerbStart)
			up()
			woken()
		case "paused":
			move(VerbStart)
			move(VerbPause)
			up()
			frozen()
		case "suspended":
			if rec.phase() != Stopped {
				move(VerbSuspend)
			}
			down(BySuspend)
		default:
			m.wrong = append(m.wrong, c.String()+": no such mode")
		}
	}
	fresh := func() {
		if c.CreateFirst {
			if !rec.phase().live() || rec.Instance.ID != c.Instance || len(rec.Spec.Volumes) > 0 {
				m.wrong = append(m.wrong, c.String()+": nothing is to stay until it is there")
			}
			rec.Depose()
		}
		if rec.Instance != nil {
			delete(m.Observed.Instances, rec.Instance.ID)
		}
		if rec.phase() != Pending {
			move(VerbDestroy)
		}
		rec.Instance = nil
		move(VerbCreate)
		rec.Instance.ID, rec.Instance.CreatedAt = m.id("i"), m.Now
		rec.Instance.Image = m.Records.Images[rec.Spec.Image].digest()
		if n := rec.Spec.Network; n != nil {
			net := m.Records.Networks[n.Name]
			if net == nil {
				m.wrong = append(m.wrong, c.String()+": no network "+n.Name)
			} else if rec.Net == nil || rec.Net.Network != n.Name || !net.CIDR.Contains(rec.Net.Address) {
				rec.Net = &Net{Network: n.Name, Address: net.CIDR.Addr().Next()}
			}
		} else {
			rec.Net = nil
		}
		for n := range rec.Spec.Volumes {
			if rec.Claim[n] == "" {
				rec.Claim = maps.Clone(rec.Claim)
				if rec.Claim == nil {
					rec.Claim = map[string]string{}
				}
				rec.Claim[n] = m.id("v")
			}
			m.Observed.Volumes[rec.Claim[n]] = true
		}
	}
	remove := func() {
		if rec.Instance != nil {
			if i := rec.Instance.ID; m.Observed.Instances[i].UID == rec.UID || m.Observed.Instances[i].UID == "" {
				delete(m.Observed.Instances, i)
			}
		}
		for _, d := range rec.Deposed {
			delete(m.Observed.Instances, d.Instance.ID)
		}
		if rec.phase() != Destroyed {
			move(VerbDestroy)
		}
		delete(m.Records.Sandboxes, c.Address)
	}
	refill := func() {
		for _, id := range rec.Claim {
			m.Observed.Volumes[id] = true
		}
	}
	switch c.Action {
	case ActCreate:
		fresh()
		if rec.Lease.Start.IsZero() {
			rec.Lease = StartLease(&rec.Spec, m.Now)
		}
		toMode(c.Then)
	case ActReplace, ActRecreate:
		fresh()
		refill()
		if c.NewLease {
			rec.Lease = before.Anew(&rec.Spec, m.Now)
		}
		rec.Restarts = Retry{}
		toMode(c.Then)
	case ActRestart:
		refill()
		move(VerbRestart)
		toMode(c.Then)
	case ActStart:
		refill()
		if c.Reason == Restarted {
			rec.Restarts = RestartBackoff(rec.Restarts, &rec.Spec, upTime(rec.Instance, rec.Instance.Outcome), m.Now, 0)
		}
		move(VerbStart)
		up()
		woken()
	case ActPause:
		move(VerbPause)
		up()
		frozen()
		if c.Hold != nil {
			rec.Hold = c.Hold
		}
	case ActResume:
		move(VerbResume)
		up()
		woken()
	case ActSuspend:
		move(VerbSuspend)
		down(BySuspend)
		if c.Hold != nil {
			rec.Hold = c.Hold
		}
	case ActRepair:
		refill()
		if i := rec.Instance; i != nil {
			seen := m.Observed.Instances[i.ID]
			seen.Missing = nil
			m.Observed.Instances[i.ID] = seen
		}
	case ActExpire:
		if c.Then != "paused" {
			EndPause(rec)
		}
		if rec.Expired == nil || c.Deadline.After(rec.Expired.Deadline) {
			rec.Expired = &Expired{Deadline: c.Deadline, Reason: c.Reason, At: m.Now}
		}
		ex := *rec.Expired
		ex.Done, ex.Paused = true, c.Then == "paused"
		rec.Expired = &ex
		switch c.Then {
		case "paused":
			if rec.phase() != Paused {
				move(VerbPause)
			}
			up()
			rec.Lease = rec.Lease.OnExpiry(&rec.Spec, c.Deadline, m.Now)
			if c.Hold != nil {
				rec.Hold = c.Hold
			}
		case "stopped":
			if rec.phase() != Stopped {
				move(VerbExpire)
			}
			down(ByExpiry)
		case "destroyed":
			m.Records.Ended[c.Address] = &Ended{Address: c.Address, UID: rec.UID, Reason: EndReason(c.Reason), Deadline: c.Deadline,
				ShutdownTime: rec.Spec.ShutdownTime, TTL: rec.Spec.Lifetime.TTL, At: m.Now}
			remove()
		}
	case ActDelete:
		if c.Reason == "lost" {
			m.Records.Ended[c.Address] = &Ended{Address: c.Address, UID: rec.UID, Reason: "lost", At: m.Now}
		}
		remove()
	case ActForget:
		delete(m.Records.Sandboxes, c.Address)
	case ActRelease:
		if c.Wake {
			lease, err := rec.Lease.OnResume(rec, nil, m.Now, 0)
			if err != nil {
				m.wrong = append(m.wrong, c.String()+": "+err.Error())
			}
			rec.Lease, rec.Expired = lease, nil
		}
		rec.Hold = c.Hold
	case ActNoop:
		if !c.Warn.IsZero() {
			rec.Warned = c.Warn
		}
		if c.Then == "failed" {
			move(VerbFail)
			rec.Instance.FailReason = c.Reason
		}
	case ActUpdate:
	default:
		m.wrong = append(m.wrong, c.String()+": no such action")
	}
}

func (i *Image) digest() string {
	if i == nil {
		return ""
	}
	return i.Digest
}
