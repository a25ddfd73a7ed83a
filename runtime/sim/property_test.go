package sim_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pinfold/runtime"
	"pinfold/runtime/sim"
)

// Whatever is called and whatever happens to the machine: Observe and the books
// agree, no process identity comes twice, and removing everything removes
// everything.
func TestAnythingCanBeCleanedUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := sim.New()
		h := w.Open("l1")
		n := runtime.Network{ID: "net00001", CIDR: netip.MustParsePrefix("10.9.0.0/24"), Gateway: netip.MustParseAddr("10.9.0.1")}
		ids := []string{"00000000000a", "00000000000b", "00000000000c"}
		describe := func(i int, carry string) runtime.Instance {
			in := spec(ids[i], "sim", "print=x", "await=USR1", "exit=3")
			in.CarryFrom = carry
			in.Mounts = []runtime.Mount{{Kind: "volume", Source: "v1", Path: "/v"}}
			in.Net = &runtime.Attachment{Network: n, Address: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, 0, byte(2 + i)}), 24)}
			in.Forwards = []runtime.Forward{{Name: "p", Protocol: "tcp", HostAddr: n.Gateway, HostPort: uint16(80 + i), ContainerPort: 80}}
			in.Limits = runtime.Limits{PIDs: 10}
			return in
		}
		seen := map[runtime.Process]string{}
		steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) [2]int {
			return [2]int{rapid.IntRange(0, 17).Draw(t, "what"), rapid.IntRange(0, len(ids)-1).Draw(t, "which")}
		}), 1, 60).Draw(t, "steps")
		for _, s := range steps {
			i := s[1]
			id := ids[i]
			before := look(t, h)
			live := before.Instances[id].Alive
			switch what := s[0]; what {
			case 0, 1:
				_ = h.EnsureVolume(ctx, runtime.Volume{ID: "v1"})
				_ = h.EnsureNetwork(ctx, n)
			case 2, 3, 4:
				carry := ""
				if what == 4 {
					carry = ids[(i+1)%len(ids)]
				}
				p, err := h.Create(ctx, describe(i, carry))
				if err == nil {
					if owner, known := seen[p]; known && (owner != id || !live) {
						t.Fatalf("process %+v was %s's, now it is %s's", p, owner, id)
					}
					seen[p] = id
				}
			case 5, 6:
				_ = h.Start(ctx, id)
			case 7:
				_ = h.Pause(ctx, id)
			case 8:
				_ = h.Resume(ctx, id)
			case 9:
				_ = h.Signal(ctx, id, 10)
			case 10:
				if out, err := h.Stop(ctx, id, runtime.StopOptions{}); err == nil && !live {
					if had := before.Instances[id].Outcome; (out == nil) != (had == nil) {
						t.Fatalf("Stop says %+v, Observe said %+v", out, had)
					}
				}
			case 11:
				_ = h.Remove(ctx, id)
			case 12:
				w.Reboot()
			case 13:
				if live {
					w.Kill(id)
				}
			case 14:
				if live {
					w.OOMInit(id)
				}
			case 15:
				if live && !slices.Contains(before.Instances[id].Missing, "link") {
					w.Break(id, "link")
				}
			case 16:
				if err := h.Repair(ctx, describe(i, "")); err == nil && len(look(t, h).Instances[id].Missing) > 0 {
					t.Fatalf("repaired, it lacks %q", look(t, h).Instances[id].Missing)
				}
			case 17:
				w.Crash(1, sim.When(i))
				_, _ = h.Create(ctx, describe(i, ids[(i+2)%len(ids)]))
				h = w.Open("l1")
			}
			w.ClearFaults()
			for id, s := range look(t, h).Instances {
				if s.Alive != slices.Contains(w.Leftovers(), "process "+id) || s.Layer != slices.Contains(w.Leftovers(), "layer "+id) {
					t.Fatalf("%s is %+v, but there is %q", id, s, w.Leftovers())
				}
			}
		}
		var errs []error
		for _, id := range ids {
			errs = append(errs, h.Remove(ctx, id))
		}
		errs = append(errs, h.RemoveNetwork(ctx, n), h.RemoveVolume(ctx, "v1"), h.Close())
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if left := w.Leftovers(); len(left) > 0 {
			t.Fatalf("left over: %q", left)
		}
	})
}

func look(t *rapid.T, h *sim.Host) runtime.Observation {
	o, err := h.Observe(ctx)
	if err != nil {
		t.Fatal(fmt.Errorf("observe: %w", err))
	}
	return o
}
