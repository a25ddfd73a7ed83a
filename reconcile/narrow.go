package reconcile

import (
	"pinfold/config"
	"pinfold/reconcile/plan"
)

// only narrows records to one sandbox and what it stands on, so that a plan for
// one costs the same however many others there are.
func (e *Engine) only(address string) plan.Records {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := &e.records
	r := plan.Records{
		Lineage: all.Lineage, Serial: all.Serial,
		Sandboxes: map[string]*plan.Sandbox{}, Networks: map[string]*plan.Network{},
		Volumes: map[string]*plan.Volume{}, Images: map[string]*plan.Image{},
	}
	s := all.Sandboxes[address]
	if s == nil {
		if end := all.Ended[address]; end != nil {
			r.Ended = map[string]*plan.Ended{address: end}
		}
		return r
	}
	r.Sandboxes[address] = s
	pick(r.Images, all.Images, s.Spec.Image)
	if s.Spec.Network != nil {
		pick(r.Networks, all.Networks, s.Spec.Network.Name)
	}
	if s.Net != nil {
		pick(r.Networks, all.Networks, s.Net.Network)
	}
	for _, m := range s.Spec.Mounts {
		pick(r.Volumes, all.Volumes, m.Volume)
	}
	return r
}

func pick[T any](to, from map[string]*T, address string) {
	if v := from[address]; v != nil {
		to[address] = v
	}
}

// declaring narrows a declaration to one sandbox and the kinds beside sandboxes
// that it, or its record, stands on. nil when the sandbox is not declared.
func declaring(d *config.Desired, res *config.Resource[config.Sandbox], r *plan.Records) *config.Desired {
	n := &config.Desired{}
	if res != nil {
		n.Sandboxes = []config.Resource[config.Sandbox]{*res}
	}
	wanted := map[string]bool{}
	if res != nil {
		wanted[res.Spec.Image] = true
		if res.Spec.Network != nil {
			wanted[res.Spec.Network.Name] = true
		}
		for _, m := range res.Spec.Mounts {
			wanted[m.Volume] = true
		}
	}
	for i := range d.Images {
		if a := d.Images[i].Address; wanted[a] || r.Images[a] != nil {
			n.Images = append(n.Images, d.Images[i])
		}
	}
	for i := range d.Networks {
		if a := d.Networks[i].Address; wanted[a] || r.Networks[a] != nil {
			n.Networks = append(n.Networks, d.Networks[i])
		}
	}
	for i := range d.Volumes {
		if a := d.Volumes[i].Address; wanted[a] || r.Volumes[a] != nil {
			n.Volumes = append(n.Volumes, d.Volumes[i])
		}
	}
	return n
}
