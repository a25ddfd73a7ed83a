package reconcile

import (
	"testing"

	"pinfold/reconcile/plan"
)

const twoSandboxes = `
image "base" { source = "host" }
network "n" { }
volume "data" {}
sandbox "a" {
  image   = image.base
  command = ["sleep", "inf"]
  env     = { GW = network.n.gateway, PEER = sandbox.b.address }
  network { name = network.n }
  port "http" { container = 80 }
  mount {
    volume = volume.data
    path   = "/data"
  }
  volume "work" { path = "/work" }
}
sandbox "b" {
  image   = image.base
  command = ["sleep", "inf"]
  network { name = network.n }
  operating_mode = "paused"
}
output "a" { value = sandbox.a.address }
`

func TestApplyPlanDestroy(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	e := l.open("apply")
	res := l.apply(e, plan.Options{})
	if res.Applied.Add != 5 {
		t.Errorf("applied %+v, want 5 to add", res.Applied)
	}
	if len(res.Outputs) != 1 || string(res.Outputs[0].Value) == "" {
		t.Errorf("outputs %+v", res.Outputs)
	}
	l.nothingToDo(e)
	l.tidy(e)
	l.close(e)

	e = l.open("apply")
	l.nothingToDo(e)
	got := l.phases(e)
	if got["sandbox.a"] != plan.Running || got["sandbox.b"] != plan.Paused {
		t.Errorf("phases %v", got)
	}
	rec, _ := e.sandbox("sandbox.a")
	b, _ := e.sandbox("sandbox.b")
	if rec.Spec.Env["PEER"] != b.Net.Address.String() {
		t.Errorf("PEER is %q, sandbox.b has %s", rec.Spec.Env["PEER"], b.Net.Address)
	}
	l.end(e)
}
