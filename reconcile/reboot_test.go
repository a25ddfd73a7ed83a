package reconcile

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
)

const manyKinds = `
image "base" { source = "host" }
network "n" { cidr = "10.88.7.0/24" }
volume "data" {}
policy "p" {}
sandbox "up" {
  image         = image.base
  command       = ["sim", "append=/log:x"]
  shutdown_time = "2000-01-02T00:00:00Z"
  network { name = network.n }
  port "http" { container = 80 }
  volume "work" { path = "/work" }
}
sandbox "fresh" {
  image   = image.base
  command = ["sim", "append=/log:x"]
  lifetime { on_lost = "recreate-fresh" }
}
sandbox "kept" {
  image   = image.base
  command = ["sleep", "inf"]
  lifetime { on_lost = "retain" }
}
sandbox "gone" {
  image   = image.base
  command = ["sleep", "inf"]
  lifetime { on_lost = "delete" }
}
sandbox "suspended" {
  image          = image.base
  command        = ["sleep", "inf"]
  operating_mode = "suspended"
}
sandbox "frozen" {
  image   = image.base
  command = ["sleep", "inf"]
}
sandbox "stopped" {
  image   = image.base
  command = ["sleep", "inf"]
}
sandbox "finished" {
  image   = image.base
  command = ["sim", "exit=3"]
}
sandbox "retain" {
  image   = image.base
  command = ["sim", "append=/log:x"]
  lifetime { ttl = "1h" }
}
sandbox "delete" {
  image           = image.base
  command         = ["sleep", "inf"]
  shutdown_policy = "delete"
  lifetime { ttl = "1h" }
}
sandbox "pause" {
  image           = image.base
  command         = ["sleep", "inf"]
  shutdown_policy = "pause"
  lifetime { ttl = "1h" }
}
`

// After a reboot everything that is declared is back as its rules say, whatever it
// was, with its files and its deadline; what had ended while the host was off is
// expired and never started. One half is a power cut, the other a shutdown in order,
// in which every process got SIGTERM, and SIGKILL what did not end by it.
func TestReboot(t *testing.T) {
	for _, how := range []string{"power cut", "shutdown"} {
		for _, who := range []string{"apply", "agent"} {
			t.Run(how+" then "+who, func(t *testing.T) {
				inTime(t, func(t *testing.T) { reboot(t, how == "shutdown", who) })
			})
		}
	}
}

func reboot(t *testing.T, inOrder bool, who string) {
	l := newLab(t, nil)
	l.main(manyKinds)
	e := l.open("apply")
	l.apply(e, plan.Options{})
	l.act(e, "pause", "sandbox.frozen")
	l.act(e, "stop", "sandbox.stopped")
	l.phase(e, "sandbox.finished", plan.Stopped)
	before := map[string]SandboxView{}
	for a := range e.snapshot().Sandboxes {
		before[a] = l.view(e, a)
	}
	claim := e.current("sandbox.up").Claim["work"]
	l.close(e)

	if inOrder {
		for a, v := range before {
			if v.PID == nil {
				continue
			}
			l.world.KillMain(*v.InstanceID, 15)
			if a == "sandbox.frozen" {
				l.world.Kill(*v.InstanceID) // frozen: it heard nothing
			}
		}
	}
	l.world.Reboot()
	time.Sleep(2 * time.Hour)
	l.world.ClearOps()

	e = l.open(who)
	if who == "agent" {
		k := l.keep(e)
		sleep(10 * time.Minute)
		k.stop()
	} else {
		l.apply(e, plan.Options{})
		sleep(time.Hour) // back-off of what was killed
		l.apply(e, plan.Options{})
	}
	for address, want := range map[string]plan.Phase{
		"up": plan.Running, "fresh": plan.Running, "suspended": plan.Stopped, "frozen": plan.Paused, "stopped": plan.Stopped,
		"finished": plan.Stopped, "retain": plan.Stopped, "pause": plan.Stopped,
	} {
		if !inOrder && (address == "retain" || address == "pause") {
			want = plan.Lost // a lost one that expires stays that
		}
		l.phase(e, "sandbox."+address, want)
	}
	// SIGTERM from outside leaves an outcome, so that one is started again instead.
	if kept := l.view(e, "sandbox.kept"); inOrder && kept.Phase != plan.Running || !inOrder && kept.Phase != plan.Lost {
		t.Errorf("sandbox.kept is %s", kept.Phase)
	}
	phases := l.phases(e)
	if _, there := phases["sandbox.gone"]; there != inOrder {
		t.Errorf("sandbox.gone is there: %v", there)
	}
	if _, there := phases["sandbox.delete"]; there {
		t.Error("sandbox.delete outlived its deadline")
	}
	for _, address := range []string{"retain", "pause", "delete"} {
		id := *before["sandbox."+address].InstanceID
		for _, call := range l.world.Ops() {
			if (call.Op == sim.OpCreate || call.Op == sim.OpStart) && call.ID == id {
				t.Errorf("sandbox.%s, which had ended, was begun again: %s", address, call)
			}
		}
	}
	for _, address := range []string{"retain", "pause"} {
		v := l.view(e, "sandbox."+address)
		if c := conditionOf(v, "Expired"); c.Status != "True" {
			t.Errorf("sandbox.%s: %+v", address, c)
		}
	}
	if v := l.view(e, "sandbox.finished"); v.Outcome == nil || v.Outcome.ExitCode != 3 {
		t.Errorf("sandbox.finished ended with %+v", v.Outcome)
	}
	up := l.view(e, "sandbox.up")
	if was := before["sandbox.up"]; !up.ExpiresAt.Equal(*was.ExpiresAt) || *up.AddressV4 != *was.AddressV4 || up.Ports["http"] != was.Ports["http"] {
		t.Errorf("sandbox.up is %+v, was %+v", up, was)
	}
	if now := e.current("sandbox.up").Claim["work"]; now != claim {
		t.Errorf("the claim of sandbox.up is volume %s, was %s", now, claim)
	}
	for address, want := range map[string]string{"up": "xx", "retain": "x", "fresh": "x"} {
		if inOrder && address == "fresh" {
			want = "xx" // it was not lost
		}
		if text, _ := l.world.LayerFile(sandboxID(e, "sandbox."+address), "/log"); text != want {
			t.Errorf("sandbox.%s has written %q, want %q", address, text, want)
		}
	}
	l.nothingToDo(e)
	l.tidy(e)
	l.end(e)
}

func conditionOf(v SandboxView, typ string) plan.Condition {
	for _, c := range v.Conditions {
		if strings.EqualFold(c.Type, typ) {
			return c
		}
	}
	return plan.Condition{}
}

// A recreated sandbox that cannot be started, as when it is killed once more just
// then, keeps the files that were carried over to it.
func TestAFailedStartKeepsCarriedFiles(t *testing.T) {
	for _, when := range []sim.When{sim.Before, sim.After} {
		inTime(t, func(t *testing.T) {
			l := newLab(t, nil)
			l.main(sandboxA(""))
			e := l.open("apply")
			l.apply(e, plan.Options{})
			l.world.Kill(sandboxID(e, "sandbox.a"))
			l.world.Fail(sim.OpStart, "", errors.New("it ended before its command ran"), when, 3)
			for range 3 {
				sleep(time.Hour)
				if _, err := e.Apply(context.Background(), l.request(plan.Options{}), nil, nil); err == nil {
					t.Fatal("the start was to fail")
				}
			}
			sleep(time.Hour)
			l.apply(e, plan.Options{})
			if text, _ := l.world.LayerFile(sandboxID(e, "sandbox.a"), "/log"); !strings.HasPrefix(text, "x") || text == "x" {
				t.Errorf("the layer says %q: the files of the first run are lost", text)
			}
			l.nothingToDo(e)
			l.tidy(e)
			l.end(e)
		})
	}
}
