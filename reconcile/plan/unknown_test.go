package plan

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"pinfold/config"
)

// Unknown values are absent from After, and the second decision, with them
// known and nothing else looked at, is the right one for each outcome.
func TestUnknownIsDecidedAgain(t *testing.T) {
	w := unknownAfterApply()
	first := Make(w.Input)
	c := first.Changes[1]
	if string(c.After) == "" || strings.Contains(string(c.After), "NET") || !strings.Contains(string(c.Before), "10.0.0.1") {
		t.Errorf("before %s, after %s", c.Before, c.After)
	}
	if !slices.Equal(first.Unsettled(), []string{"network.n"}) {
		t.Errorf("unsettled: %v", first.Unsettled())
	}
	m := &model{Input: &w.Input}
	m.run(&Plan{Changes: first.Changes[:1]})
	for value, want := range map[string]string{
		"10.0.0.1":  "",
		"10.88.9.1": "restart sandbox.a (files: env changed): restarted, files kept; then running; diff env.NET\n0 to add, 1 to change, 0 to replace, 0 to destroy; 0 to converge\n",
	} {
		d := *w.Desired
		d.Sandboxes = slices.Clone(d.Sandboxes)
		d.Sandboxes[0].Spec.Env, d.Sandboxes[0].Unknown = map[string]string{"NET": value}, nil
		again := w.Input
		again.Desired = &d
		again.Options.Targets = []string{"sandbox.a"}
		if got := Make(again).String(); got != want {
			t.Errorf("NET = %s: with a target %s, want %s", value, got, want)
		}
	}
}

func TestWithoutUnknown(t *testing.T) {
	raw := json.RawMessage(`{"command":["a","b"],"env":{"A":"1","a.b":"2"},"mount":[{"path":"/x","size":3}],"file":{"/etc/a.toml":{"content":"x","mode":"0644"}},"port":{"http":{"host":1}},"user":"u"}`)
	got := withoutUnknown(raw, []string{"command[1]", "env.a.b", "mount[0].path", `file["/etc/a.toml"].content`, "port.http", "user", "hostname", "command[7]", "command[x]", "env"})
	if want := `{"command":["a",null],"file":{"/etc/a.toml":{"mode":"0644"}},"mount":[{"size":3}],"port":{}}`; string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestCompare(t *testing.T) {
	a := spec(env("A", "1"), claim("work"))
	b := spec(env("B", "2"), claim("work"), on("network.n"), command("x", "y"))
	b.Ports = map[string]config.Port{"http": {Container: 80}}
	b.Lifetime.TTL = 5
	b.Volumes = map[string]config.Claim{"work": {Path: "/work", ReadOnly: true}}
	var got []string
	for _, d := range diffSandbox(&a, &b) {
		got = append(got, d.Path+" "+classWords[d.class])
	}
	want := []string{"command restart", "env.A restart", "env.B restart", "lifetime.ttl in place", "network replace", "port.http in place", "volume.work.read_only refused"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestLosses(t *testing.T) {
	for want, w := range map[int]*world{
		0: newWorld().both("sandbox.a", spec(), gone),
		1: newWorld().record("sandbox.a", spec(claim("work"))),
		3: deleteInOrder(),
		2: networkRange(),
	} {
		if got := Make(w.Input).Losses(); got != want {
			t.Errorf("%d losses, want %d, in\n%s", got, want, Make(w.Input))
		}
	}
}

// A replacement forced by the image shows its digests, though the spec is the same.
func TestForcedByImage(t *testing.T) {
	c := Make(newWorld().both("sandbox.a", spec(), madeFrom("old")).Input).Changes[0]
	if len(c.Diff) != 1 || string(c.Diff[0].Before) != `"old"` || string(c.Diff[0].After) != `"host"` || !c.Diff[0].Replace || !slices.Equal(c.ReplacePaths, []string{"image"}) || c.After != nil {
		t.Errorf("%+v", c)
	}
	c = Make(imageSource().Input).Changes[1]
	if len(c.Diff) != 1 || string(c.Diff[0].Before) != `"host"` || !c.Diff[0].Unknown || c.Diff[0].After != nil {
		t.Errorf("%+v", c)
	}
}

func TestAdopt(t *testing.T) {
	for _, c := range []struct {
		name    string
		is      config.Sandbox
		gen     int64
		running int64
	}{
		{"the same", spec(), 1, 1},
		{"in place", spec(labels("a", "b")), 2, 2},
		{"restart", spec(command("sh")), 2, 1},
	} {
		rec := newWorld().record("sandbox.a", spec(), retry(Retry{Attempts: 3})).Records.Sandboxes["sandbox.a"]
		r := &config.Resource[config.Sandbox]{Address: "sandbox.a", Spec: c.is, DependsOn: []string{"image.base"}, Lifecycle: config.Lifecycle{PreventDestroy: true}}
		Adopt(rec, r, &Change{Action: ActUpdate})
		if rec.Generation != c.gen || rec.Instance.RunningSpec != c.running || !rec.Lifecycle.PreventDestroy || len(rec.DependsOn) != 1 || !sameSandbox(&rec.Spec, &c.is) {
			t.Errorf("%s: %+v, running %d", c.name, rec, rec.Instance.RunningSpec)
		}
		if fresh := rec.Retry == (Retry{}); fresh != (c.gen == 2) {
			t.Errorf("%s: retry %+v", c.name, rec.Retry)
		}
	}
}
