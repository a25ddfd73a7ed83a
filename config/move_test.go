package config

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestModulesOver(t *testing.T) {
	for address, want := range map[string][]string{
		"sandbox.a":                             nil,
		"module.m.sandbox.a":                    {"module.m"},
		`module.m["x.y"].sandbox.a["module.q"]`: {"module.m", `module.m["x.y"]`},
		`module.m[0].module.n["k"].volume.v`:    {"module.m", "module.m[0]", "module.m[0].module.n", `module.m[0].module.n["k"]`},
	} {
		got := ModulesOver(address)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", address, got)
		}
		for _, name := range got {
			if back, err := ParseModule(name); err != nil || back != name || !Covers(name, address) {
				t.Errorf("%s: %s is no module over it: %v", address, name, err)
			}
		}
	}
}

func TestMoveApply(t *testing.T) {
	for _, c := range []struct{ from, to, address, want string }{ // want "": not concerned
		{"sandbox.a", "sandbox.b", "sandbox.a", "sandbox.b"},
		{"sandbox.a", "sandbox.b", `sandbox.a["x"]`, `sandbox.b["x"]`},
		{"sandbox.a", "sandbox.b", "sandbox.a[0]", "sandbox.b[0]"},
		{"sandbox.a", "sandbox.b", "sandbox.ab", ""},
		{"sandbox.a", "sandbox.b", "sandbox.a-b", ""},
		{"sandbox.a", "sandbox.b", "volume.a", ""},
		{"sandbox.a", "sandbox.b", "module.m.sandbox.a", ""},
		{"sandbox.a", `sandbox.a["x"]`, "sandbox.a", `sandbox.a["x"]`},
		{"sandbox.a", `sandbox.a["x"]`, `sandbox.a["y"]`, ""},
		{`sandbox.a["x"]`, "sandbox.b", `sandbox.a["x"]`, "sandbox.b"},
		{`sandbox.a["x"]`, `sandbox.a["y"]`, `sandbox.a["x"]`, `sandbox.a["y"]`},
		{`sandbox.a["x"]`, `sandbox.a["y"]`, "sandbox.a", ""},
		{"sandbox.a[1]", "sandbox.a[0]", "sandbox.a[1]", "sandbox.a[0]"},
		{"sandbox.a[1]", "sandbox.a[0]", "sandbox.a[10]", ""},
		{"sandbox.a", "module.m.sandbox.a", "sandbox.a[2]", "module.m.sandbox.a[2]"},
		{"module.m.sandbox.a", "sandbox.a", `module.m.sandbox.a["k"]`, `sandbox.a["k"]`},
		{"module.m.sandbox.a", "sandbox.a", `module.m["k"].sandbox.a`, ""},
		{"module.m", "module.n", "module.m.sandbox.a", "module.n.sandbox.a"},
		{"module.m", "module.n", `module.m["k"].sandbox.a[0]`, `module.n["k"].sandbox.a[0]`},
		{"module.m", "module.n", "module.m.module.m.sandbox.a", "module.n.module.m.sandbox.a"},
		{"module.m", "module.n", "module.m", "module.n"},
		{"module.m", "module.n", "module.mm.sandbox.a", ""},
		{"module.m", "module.n[0]", "module.m.sandbox.a", "module.n[0].sandbox.a"},
		{"module.m", "module.n[0]", "module.m[0].sandbox.a", ""},
		{`module.m["]."]`, "module.n", `module.m["]."].volume.v`, "module.n.volume.v"},
		{`module.m["a"]`, "module.n", `module.m["b"].volume.v`, ""},
		{"", "sandbox.b", "sandbox.a", ""},
	} {
		got, moved := Move{From: c.from, To: c.to}.Apply(c.address)
		if moved != (c.want != "") || moved && got != c.want || !moved && got != c.address {
			t.Errorf("from %s to %s: %s becomes %s, %t; want %q", c.from, c.to, c.address, got, moved, c.want)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		target, address string
		want            bool
	}{
		{"sandbox.a", "sandbox.a", true},
		{"sandbox.a", `sandbox.a["x"]`, true},
		{`sandbox.a["x"]`, `sandbox.a["x"]`, true},
		{`sandbox.a["x"]`, "sandbox.a", false},
		{`sandbox.a["x"]`, `sandbox.a["xy"]`, false},
		{"sandbox.a[1]", "sandbox.a[10]", false},
		{"sandbox.a", "sandbox.ab", false},
		{"sandbox.a", "module.m.sandbox.a", false},
		{"module.m", "module.m", true},
		{"module.m", `module.m["x"]`, true},
		{"module.m", "module.m.sandbox.a", true},
		{"module.m", `module.m["x"].module.n[0].sandbox.a["y"]`, true},
		{"module.m", "module.mm.sandbox.a", false},
		{`module.m["x"]`, `module.m["x"].sandbox.a`, true},
		{`module.m["x"]`, `module.m["y"].sandbox.a`, false},
		{`module.m["x"]`, "module.m.sandbox.a", false},
		{"policy", "policy", true},
		{"module.m.sandbox.a", `module.m.sandbox.a["y"]`, true},
		{"module.m.sandbox.a", `module.m[0].sandbox.a`, true},
		{"module.m.sandbox.a", `module.m[0].sandbox.b`, false},
		{"module.m[1].sandbox.a", `module.m[0].sandbox.a`, false},
		{"module.m.module.n", `module.m[0].module.n["."].sandbox.a`, true},
		{"module.m.module.n[1]", `module.m[0].module.n[2].sandbox.a`, false},
		{"module.m.sandbox.a", "module.m", false},
		{"sandbox.a.x", "sandbox.a", false},
		{"module.sandbox", "module.sandbox.sandbox.a", true},
		{"", "sandbox.a", false},
		{"sandbox.a", "", false},
	} {
		if got := Covers(c.target, c.address); got != c.want {
			t.Errorf("%s covers %s: %t", c.target, c.address, got)
		}
	}
}

// An address is covered by each module on its way, by its resource and by itself,
// and moves with each of them.
func TestMovesCarryWhatTheyCover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := anyAddress(t)
		targets := []string{a.String(), a.Whole()}
		_, way, err := parseAddress(a.String())
		if err != nil {
			t.Fatal(err)
		}
		module := ""
		for _, step := range way {
			whole := inModule(module, "module."+step.name)
			module = whole + index(step.key)
			targets = append(targets, whole, module)
		}
		for _, target := range targets {
			if !Covers(target, a.String()) {
				t.Fatalf("%s does not cover %s", target, a)
			}
			to := target + "x"
			if strings.HasSuffix(target, `"]`) {
				to = strings.TrimSuffix(target, `"]`) + `x"]`
			} else if strings.HasSuffix(target, "]") {
				to = strings.TrimSuffix(target, "]") + "0]"
			}
			moved, ok := Move{From: target, To: to}.Apply(a.String())
			if !ok || !Covers(to, moved) {
				t.Fatalf("%s moved from %s to %s is %s, %t", a, target, to, moved, ok)
			}
			if back, ok := (Move{From: to, To: target}).Apply(moved); !ok || back != a.String() {
				t.Fatalf("%s comes back as %s, %t", a, back, ok)
			}
		}
	})
}

func TestRemovalCovers(t *testing.T) {
	for _, tt := range []struct {
		from, address string
		want          bool
	}{
		{"sandbox.a", "sandbox.a", true},
		{"sandbox.a", `sandbox.a["x.y]"]`, true},
		{"sandbox.a", "sandbox.ab", false},
		{"sandbox.a", "module.m.sandbox.a", false},
		{`sandbox.a["x"]`, `sandbox.a["x"]`, true},
		{`sandbox.a["x"]`, `sandbox.a["y"]`, false},
		{`sandbox.a["x"]`, "sandbox.a", false},
		{"module.m.sandbox.a", `module.m["k"].sandbox.a[0]`, true},
		{`module.m["k"].sandbox.a`, `module.m["k"].sandbox.a[0]`, true},
		{`module.m["k"].sandbox.a`, `module.m["l"].sandbox.a[0]`, false},
		{"module.m", `module.m["k"].module.n[1].sandbox.a[0]`, true},
		{"module.m.module.n", `module.m["k"].module.n[1].volume.v`, true},
		{"module.m.module.n", `module.m["k"].sandbox.n`, false},
		{"module.m", "module.mm.sandbox.a", false},
		{"sandbox.a", "", false},
		{"", "sandbox.a", false},
	} {
		if got := (Removal{From: tt.from}).Covers(tt.address); got != tt.want {
			t.Errorf("removed %q about %q: %t, want %t", tt.from, tt.address, got, tt.want)
		}
	}
}
