package reconcile

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
	"pinfold/state"
)

const several = `
image "base" { source = "host" }
network "n" { cidr = "10.88.7.0/24" }
volume "data" {}
volume "spare" {}
sandbox "up" {
  image   = image.base
  command = ["sim", "append=/log:x"]
  labels  = { team = "a" }
  network { name = network.n }
  port "http" { container = 80 }
  volume "work" { path = "/work" }
  mount {
    volume = volume.data
    path   = "/data"
  }
  lifetime { ttl = "8h" }
}
sandbox "frozen" {
  image   = image.base
  command = ["sleep", "inf"]
}
sandbox "held" {
  image   = image.base
  command = ["sleep", "inf"]
}
sandbox "done" {
  image   = image.base
  command = ["sim", "exit=3"]
}
`

// lose takes the state file away, or what the bytes say is in its place.
func (l *lab) lose(damage []byte) {
	l.t.Helper()
	path := filepath.Join(l.state, "state.db")
	if err := os.Remove(path); err != nil {
		l.t.Fatal(err)
	}
	if damage != nil {
		if err := os.WriteFile(path, damage, 0o600); err != nil {
			l.t.Fatal(err)
		}
	}
}

func (l *lab) rebuild(lineage string, dry bool) *RebuildResult {
	l.t.Helper()
	h := l.world.Open(lineage)
	defer h.Close()
	res, err := rebuild(context.Background(), h, lineage, "/run/of/this", state.Options{Dir: l.state, Verb: "state rebuild"}, RebuildRequest{DryRun: dry})
	if err != nil {
		l.t.Fatal(err)
	}
	return res
}

// A lost state is made anew from what lies beside the instances: the next plan has
// nothing to do, but for what no sandbox speaks of, and no process is touched.
func TestRebuild(t *testing.T) {
	for name, damage := range map[string][]byte{"missing": nil, "empty": {}, "garbage": []byte(strings.Repeat("no state ", 9000))} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				l := newLab(t, nil)
				l.main(several)
				e := l.open("apply")
				l.apply(e, plan.Options{})
				l.act(e, "pause", "sandbox.frozen")
				l.act(e, "stop", "sandbox.held")
				in := config.Duration(3 * time.Hour)
				if _, err := e.Renew(context.Background(), RenewRequest{Address: "sandbox.up", In: &in}); err != nil {
					t.Fatal(err)
				}
				before := map[string]SandboxView{}
				for _, a := range []string{"up", "frozen", "held", "done"} {
					before[a] = l.view(e, "sandbox."+a)
				}
				rec := e.current("sandbox.up")
				lineage := e.store.Lineage()
				spare, _ := e.volume("volume.spare")
				l.close(e)
				l.lose(damage)

				l.world.ClearOps()
				if res := l.rebuild(lineage, true); len(res.Records) != 7 {
					t.Errorf("a dry run finds %+v", res.Records)
				}
				if _, err := os.Stat(filepath.Join(l.state, "state.db")); (err == nil) != (damage != nil) {
					t.Errorf("a dry run changed the state file: %v", err)
				}
				res := l.rebuild(lineage, false)
				var got []string
				for _, r := range res.Records {
					got = append(got, r.Address)
				}
				if want := []string{"image.base", "network.n", "sandbox.done", "sandbox.frozen", "sandbox.held", "sandbox.up", "volume.data"}; !slices.Equal(got, want) {
					t.Errorf("rebuilt %v, want %v", got, want)
				}
				if !slices.ContainsFunc(res.Unknown, func(s string) bool { return strings.Contains(s, spare.ID) }) {
					t.Errorf("nothing says that volume %s could not be told: %v", spare.ID, res.Unknown)
				}
				if (res.Aside != "") != (damage != nil) {
					t.Errorf("the old file was moved to %q", res.Aside)
				}
				if ops := l.writes(); len(ops) > 0 {
					t.Errorf("rebuilding touched the host: %v", ops)
				}

				e = l.open("apply")
				for a, want := range before {
					got := l.view(e, "sandbox."+a)
					if got.Phase != want.Phase || *got.InstanceID != *want.InstanceID || (got.PID == nil) != (want.PID == nil) || got.PID != nil && *got.PID != *want.PID {
						t.Errorf("%s is %+v, was %+v", a, got, want)
					}
					if (got.Hold == nil) != (want.Hold == nil) || got.Hold != nil && got.Hold.Mode != want.Hold.Mode || got.Labels["team"] != want.Labels["team"] {
						t.Errorf("%s is held %+v and labelled %v, was %+v and %v", a, got.Hold, got.Labels, want.Hold, want.Labels)
					}
				}
				now := e.current("sandbox.up")
				if now.UID != rec.UID || now.Generation != rec.Generation || !now.Lease.Until.Equal(rec.Lease.Until) || !now.Lease.Start.Equal(rec.Lease.Start) ||
					now.Net.Address != rec.Net.Address || now.Ports["http"] != rec.Ports["http"] || now.Claim["work"] != rec.Claim["work"] {
					t.Errorf("the record is\n%+v, was\n%+v", now, rec)
				}
				for _, c := range l.plan(e).Plan.Changes {
					if c.Address != "volume.spare" && c.Action != plan.ActNoop {
						t.Errorf("the plan has %s", c)
					}
				}
				gone, err := e.GC(context.Background(), GCRequest{Remove: []string{spare.ID}})
				if err != nil || len(gone.Orphans) != 1 || gone.Orphans[0].Action != OrphanRemoved {
					t.Errorf("gc: %+v, %v", gone, err)
				}
				l.apply(e, plan.Options{})
				l.tidy(e)
				l.end(e)
			})
		})
	}
}

// Instances that say nothing of what was declared are left as they are, and named.
func TestRebuildWithoutNotes(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(several)
		e := l.open("apply")
		l.apply(e, plan.Options{})
		lineage, id := e.store.Lineage(), sandboxID(e, "sandbox.frozen")
		pid := *l.view(e, "sandbox.frozen").PID
		l.close(e)
		l.lose(nil)
		l.world.Forget(id)
		res := l.rebuild(lineage, false)
		if !slices.ContainsFunc(res.Unknown, func(s string) bool { return strings.Contains(s, id) && strings.Contains(s, "lives") }) {
			t.Errorf("nothing says that %s lives: %v", id, res.Unknown)
		}
		e = l.open("apply")
		defer l.close(e)
		if e.current("sandbox.frozen") != nil {
			t.Error("a record was made of nothing")
		}
		found, err := e.GC(context.Background(), GCRequest{})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(found.Orphans, func(o Orphan) bool { return o.ID == id })
		if i < 0 || !found.Orphans[i].Live || found.Orphans[i].Action != OrphanReported || !strings.Contains(found.Orphans[i].Hint, "gc -adopt") {
			t.Errorf("gc says %+v", found.Orphans)
		}
		if s, there, err := e.host.Inspect(context.Background(), id); err != nil || !there || s.Process.PID != pid {
			t.Errorf("the live one is now %+v, %v", s, err)
		}
	})
}

// A note that a crash prevented is written at the next look.
func TestAMissingNoteIsWritten(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(pair)
		e := l.open("apply")
		l.apply(e, plan.Options{})
		id := sandboxID(e, "sandbox.b")
		l.close(e)
		l.world.Forget(id)
		e = l.open("apply")
		l.nothingToDo(e)
		l.close(e)
		e = l.open("apply")
		if s, _, err := e.host.Inspect(context.Background(), id); err != nil || !s.Noted {
			t.Errorf("after a look: %+v, %v", s, err)
		}
		l.end(e)
	})
}

// Of several incarnations of one sandbox the record is of that which lives, else of
// that which was noted last; a released one is nobody's. Notes that name what they
// must not are none.
func TestRebuildOfSeveralIncarnations(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.twins = true
		l.main(strings.ReplaceAll(pair, "  network { name = network.n }\n", ""))
		e := l.open("apply")
		l.apply(e, plan.Options{})
		ctx := context.Background()
		// A second incarnation of each, made later: that of a is dead, that of b alive.
		second := map[string]string{}
		for _, address := range []string{"sandbox.a", "sandbox.b"} {
			rec := copySandbox(e.current(address))
			in, err := e.instanceOf(rec, newID(6))
			if err != nil {
				t.Fatal(err)
			}
			in.CarryFrom, in.Forwards = "", nil
			time.Sleep(time.Second)
			if _, err := e.host.Create(ctx, in); err != nil {
				t.Fatal(err)
			}
			rec.Instance.ID = in.ID
			if err := e.writeNote(rec.Instance.ID, rec); err != nil {
				t.Fatal(err)
			}
			second[address] = in.ID
		}
		first := map[string]string{"sandbox.a": sandboxID(e, "sandbox.a"), "sandbox.b": sandboxID(e, "sandbox.b")}
		if _, err := e.host.Stop(ctx, second["sandbox.a"], runtime.StopOptions{}); err != nil {
			t.Fatal(err)
		}
		l.world.Kill(first["sandbox.b"])
		lineage := e.store.Lineage()
		l.close(e)
		chosen := func() map[string]string {
			of := map[string]string{}
			for _, r := range l.rebuild(lineage, true).Records {
				if r.Kind == "sandbox" {
					of[r.Address] = r.ID
				}
			}
			return of
		}
		l.lose(nil)
		if got := chosen(); got["sandbox.a"] != first["sandbox.a"] || got["sandbox.b"] != second["sandbox.b"] {
			t.Errorf("rebuilt %v; alive are %s and %s", got, first["sandbox.a"], second["sandbox.b"])
		}
		l.world.Kill(first["sandbox.a"])
		if got := chosen(); got["sandbox.a"] != second["sandbox.a"] {
			t.Errorf("rebuilt %v; noted last was %s", got, second["sandbox.a"])
		}
		l.world.Unknown(first["sandbox.a"], "too many open files")
		if got := chosen(); got["sandbox.a"] != first["sandbox.a"] {
			t.Errorf("rebuilt %v; alive may be %s", got, first["sandbox.a"])
		}
		l.world.Unknown(first["sandbox.a"], "")
		h := l.world.Open(lineage)
		defer h.Close()
		if err := h.Release(ctx, second["sandbox.a"]); err != nil {
			t.Fatal(err)
		}
		if got := chosen(); got["sandbox.a"] != first["sandbox.a"] {
			t.Errorf("rebuilt %v, with one released", got)
		}
		noted, err := h.Notes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		good := string(noted[first["sandbox.a"]].Doc)
		for _, bad := range [][2]string{
			{`"address":"sandbox.a"`, `"address":""`}, {`"address":"sandbox.a"`, `"address":"sandbox.b"`}, {`"address":"image.base"`, `"address":"sandbox.a"`},
			{`"phase":"running"`, `"phase":"weird"`}, {`"uid":"`, `"uid":"0`},
		} {
			doc := strings.Replace(good, bad[0], bad[1], 1)
			if doc == good {
				t.Fatalf("the note has no %s: %s", bad[0], good)
			}
			if err := h.Note(ctx, first["sandbox.a"], []byte(doc)); err != nil {
				t.Fatal(err)
			}
			if got, there := chosen()["sandbox.a"]; there {
				t.Errorf("with %s a record was made: %s", bad[1], got)
			}
		}
	})
}
