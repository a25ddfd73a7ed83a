package reconcile

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/state"
)

// coherent checks that documents which were written or edited by others fit together:
// what the engine and the host take for granted of records that it made itself. Two
// sandboxes with one id range would share their files, and an id is a path on the host.
type coherent struct {
	uids      map[string]string // → the address that has it
	instances map[string]string
	volumes   map[string]string
	networks  map[string]string
	ranges    map[netip.Prefix]string
	alloc     *allocator
}

func newCoherent() *coherent {
	return &coherent{
		uids: map[string]string{}, instances: map[string]string{}, volumes: map[string]string{}, networks: map[string]string{},
		ranges: map[netip.Prefix]string{}, alloc: newAllocator(&plan.Records{}),
	}
}

// add takes one document, as it was read from its bucket, beside those before it.
func (c *coherent) add(bucket, key string, doc any) error {
	switch v := doc.(type) {
	case *plan.Sandbox:
		return c.sandbox(key, v)
	case *plan.Network:
		switch {
		case !v.CIDR.IsValid() && !v.Made:
		case !v.CIDR.IsValid() || !v.CIDR.Addr().Is4() || !v.Gateway.IsValid() || !v.CIDR.Contains(v.Gateway):
			return fmt.Errorf("its range %s and gateway %s do not go together", v.CIDR, v.Gateway)
		}
		for other, address := range c.ranges {
			if v.CIDR.IsValid() && other.Overlaps(v.CIDR) {
				return fmt.Errorf("its range %s overlaps that of %s", v.CIDR, address)
			}
		}
		c.ranges[v.CIDR] = key
		return cmp.Or(atKey(bucket, key, v.Address, "network"), c.id(c.networks, v.ID, 8, key))
	case *plan.Volume:
		return cmp.Or(atKey(bucket, key, v.Address, "volume"), c.id(c.volumes, v.ID, 12, key))
	case *plan.Image:
		return atKey(bucket, key, v.Address, "image")
	case *plan.Ended:
		return atKey(bucket, key, v.Address, "sandbox")
	case *config.Output:
		if v.Name != key {
			return fmt.Errorf("it is named %q", v.Name)
		}
	}
	return nil
}

func (c *coherent) sandbox(key string, rec *plan.Sandbox) error {
	if err := atKey(state.Sandboxes, key, rec.Address, "sandbox"); err != nil {
		return err
	}
	if rec.UID == "" {
		return errors.New("it has no uid")
	}
	if err := unique(c.uids, rec.UID, key, "uid"); err != nil {
		return err
	}
	own := rec.Past()
	var made []*plan.Instance
	if rec.Instance != nil {
		made = append(made, rec.Instance)
		own = append(own, rec.Instance.ID)
		if rec.DeposedAt(rec.Instance.ID) >= 0 {
			return fmt.Errorf("instance %s is its own and a deposed one", rec.Instance.ID)
		}
	}
	for i := range rec.Deposed {
		made = append(made, &rec.Deposed[i].Instance)
	}
	for _, i := range made {
		if i.Phase == plan.Destroyed || !slices.Contains(plan.Phases, i.Phase) {
			return fmt.Errorf("instance %s cannot be %q", i.ID, i.Phase)
		}
		if i.PID < 0 {
			return fmt.Errorf("instance %s cannot have pid %d", i.ID, i.PID)
		}
	}
	slices.Sort(own)
	for _, id := range slices.Compact(own) {
		if err := c.id(c.instances, id, 12, key); err != nil {
			return err
		}
	}
	for _, id := range rec.Claim {
		if err := c.id(c.volumes, id, 12, key); err != nil {
			return err
		}
	}
	for _, r := range append([]plan.IDRange{rec.IDs}, deposedIDs(rec)...) {
		slot := (int64(r.Base) - idRangeFirst) / idRangeSize
		if r != (plan.IDRange{}) && (r.Size != idRangeSize || r.Base%idRangeSize != 0 || r.Base < idRangeFirst || slot >= idRangeCount) {
			return fmt.Errorf("%d ids from %d on are no id range that pinfold gives", r.Size, r.Base)
		}
	}
	if why := c.alloc.clash(rec); why != "" {
		return errors.New(why)
	}
	c.alloc.hold(key, rec)
	return nil
}

func deposedIDs(rec *plan.Sandbox) []plan.IDRange {
	var all []plan.IDRange
	for _, d := range rec.Deposed {
		all = append(all, d.IDs)
	}
	return all
}

// id checks the form of an id, and that nothing else has it.
func (c *coherent) id(taken map[string]string, id string, length int, key string) error {
	if !isID(id, length) {
		return fmt.Errorf("%q is no id: %d hex digits are", id, length)
	}
	return unique(taken, id, key, "id")
}

func unique(taken map[string]string, what, key, kind string) error {
	if other, used := taken[what]; used {
		return fmt.Errorf("its %s %s is %s's", kind, what, other)
	}
	taken[what] = key
	return nil
}

// atKey checks that a document lies at its address, and that this is one of its kind.
func atKey(bucket, key, address, kind string) error {
	if address != key {
		return fmt.Errorf("its address is %s", address)
	}
	a, err := config.ParseAddress(key)
	switch {
	case err != nil:
		return err
	case a.Type != kind || a.String() != key:
		return fmt.Errorf("%s is no address of what is in %s", key, bucket)
	}
	return nil
}
