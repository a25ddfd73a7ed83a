package config

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// blocks draws a valid configuration, block by block.
func blocks(t *rapid.T) []string {
	out := []string{`image "base" { source = "host" }`, `locals { team = "agents" }`}
	networks := rapid.IntRange(0, 3).Draw(t, "networks")
	for i := range networks {
		cidr := ""
		if rapid.Bool().Draw(t, "fixed range") {
			cidr = fmt.Sprintf("cidr = \"10.%d.0.0/24\"", i)
		}
		out = append(out, fmt.Sprintf("network \"n%d\" {\n%s\n}", i, cidr))
	}
	policies := rapid.IntRange(0, 3).Draw(t, "policies")
	for i := range policies {
		out = append(out, fmt.Sprintf("policy \"p%d\" {\nresources { pids = %d }\nlifetime { ttl = %q }\n}", i, i+2, rapid.SampledFrom([]string{"1h", "2d", "never"}).Draw(t, "ttl")))
	}
	sandboxes := rapid.IntRange(1, 5).Draw(t, "sandboxes")
	for i := range sandboxes {
		var b strings.Builder
		fmt.Fprintf(&b, "sandbox \"s%d\" {\nimage = image.base\n", i)
		repeat := rapid.SampledFrom([]string{"", "for_each = toset([\"a\", \"b\"])", "count = 2"}).Draw(t, "repeat")
		who := map[string]string{"": `"me"`, "count = 2": "count.index"}[repeat]
		if who == "" {
			who = "each.key"
		}
		fmt.Fprintf(&b, "%s\ncommand = [\"run\", %s]\nlabels = { team = local.team }\n", repeat, who)
		var list []string
		for p := range policies {
			if rapid.Bool().Draw(t, "policy") {
				list = append(list, fmt.Sprintf("policy.p%d", p))
			}
		}
		fmt.Fprintf(&b, "policies = [%s]\n", strings.Join(list, ", "))
		if networks > 0 && rapid.Bool().Draw(t, "attached") {
			n := rapid.IntRange(0, networks-1).Draw(t, "network")
			fmt.Fprintf(&b, "network { name = network.n%d }\nport \"p\" { container = 80 }\nenv = { GW = network.n%d.gateway, WHO = %s }\n", n, n, who)
		} else if i > 0 {
			fmt.Fprintf(&b, "env = { PEERS = jsonencode(sandbox.s%d) }\n", rapid.IntRange(0, i-1).Draw(t, "peer"))
		}
		b.WriteString("}")
		out = append(out, b.String())
		out = append(out, fmt.Sprintf("output \"o%d\" { value = sandbox.s%d }", i, i))
	}
	return out
}

// places are what may differ when blocks move.
var places = cmp.Options{cmpopts.IgnoreTypes(Position{}, map[string]Position{})}

func TestOrderAndFilesDoNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := blocks(t)
		one := &Source{Dir: "/c", Files: map[string][]byte{"main.hcl": []byte(strings.Join(all, "\n"))}}
		first, diags := one.Evaluate(DefaultSettings(), nil)
		if diags.HasErrors() {
			t.Fatalf("%v\n%s", diags, one.Files["main.hcl"])
		}
		shuffled := slices.Clone(all)
		rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed"))).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		split := &Source{Dir: "/c", Files: map[string][]byte{}}
		for i, b := range shuffled {
			name := fmt.Sprintf("f%d.hcl", i%rapid.IntRange(1, 4).Draw(t, "files"))
			split.Files[name] = append(split.Files[name], b+"\n"...)
		}
		second, diags := split.Evaluate(DefaultSettings(), nil)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		if diff := cmp.Diff(first, second, places); diff != "" {
			t.Fatalf("another order gives another result:\n%s", diff)
		}
	})
}

func TestEvaluatingTwiceIsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &Source{Dir: "/c", Files: map[string][]byte{"main.hcl": []byte(strings.Join(blocks(t), "\n"))}}
		s.parsed = parseFiles(newSink(), s.Files)
		first, _ := s.Evaluate(DefaultSettings(), nil)
		second, _ := s.Evaluate(DefaultSettings(), nil)
		if diff := cmp.Diff(first, second); diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestCompleteExportsLeaveNothingUnknown gives every resource its exports.
func TestCompleteExportsLeaveNothingUnknown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &Source{Dir: "/c", Files: map[string][]byte{"main.hcl": []byte(strings.Join(blocks(t), "\n"))}}
		before, diags := s.Evaluate(DefaultSettings(), nil)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		after, diags := s.Evaluate(DefaultSettings(), exportsOf(before))
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		for _, r := range after.Sandboxes {
			if len(r.Unknown) > 0 {
				t.Fatalf("%s: %v", r.Address, r.Unknown)
			}
		}
		for i, o := range after.Outputs {
			if o.Unknown || len(o.Value) == 0 || !before.Outputs[i].Unknown {
				t.Fatalf("output %s: unknown %t, before %t, value %s", o.Name, o.Unknown, before.Outputs[i].Unknown, o.Value)
			}
		}
	})
}

// exportsOf makes up what the host would have given to all resources.
func exportsOf(d *Desired) Exports {
	ex := Exports{}
	for _, r := range d.Images {
		ex[r.Address] = Export{Digest: "host"}
	}
	for i, r := range d.Networks {
		ex[r.Address] = Export{CIDR: fmt.Sprintf("10.88.%d.0/24", i), Gateway: fmt.Sprintf("10.88.%d.1", i)}
	}
	for i, r := range d.Sandboxes {
		e := Export{InstanceID: fmt.Sprintf("%012x", i)}
		if r.Spec.Network != nil {
			e.Address = fmt.Sprintf("10.88.0.%d", i+2)
			e.Ports = map[string]ExportPort{}
			for name, p := range r.Spec.Ports {
				e.Ports[name] = ExportPort{p.Container, 40000 + i, p.Address, p.Protocol}
			}
		}
		ex[r.Address] = e
	}
	return ex
}

// TestSplitDecodingIsTheSame compares blocks whose shared part is decoded once
// with the same blocks written out.
func TestSplitDecodingIsTheSame(t *testing.T) {
	const body = `
  image       = image.base
  command     = ["run", KEY, network.n.gateway]
  env         = { A = KEY, B = "b" }
  working_dir = "/w"
  stop_grace  = KEY == "a" ? "1s" : null
  policies    = [policy.p]
  network { name = network.n }
  lifetime {
    ttl     = KEY == "a" ? "1h" : "never"
    on_lost = "retain"
  }
  resources { memory = KEY == "a" ? null : "8MiB" }
  port "http" {
    container = KEY == "a" ? 80 : 81
    protocol  = "udp"
  }
  port "fixed" { container = 90 }
  volume "v" { path = "/v" }
  volume "k" { path = "/k/${KEY}" }
  mount {
    path = "/t"
    tmpfs = true
  }
  mount {
    path      = "/u"
    tmpfs     = true
    size      = KEY == "a" ? "8MiB" : "2MiB"
  }
  file "/etc/a" { content = KEY }
  file "/etc/b" { content = "b" }
  lifecycle { prevent_destroy = KEY == "a" }
`
	const rest = `
image "base" { source = "host" }
network "n" {}
policy "p" {
  stop_grace = "7s"
  lifetime { ttl = "2h" }
  resources { memory = "7MiB" }
}
`
	repeated := mustEvaluate(t, source(t, rest+"sandbox \"w\" {\n for_each = toset([\"a\", \"b\"])\n"+strings.ReplaceAll(body, "KEY", "each.key")+"}\n"), nil)
	for i, key := range []string{"a", "b"} {
		alone := mustEvaluate(t, source(t, rest+"sandbox \"w\" {\n"+strings.ReplaceAll(body, "KEY", `"`+key+`"`)+"\n}\n"), nil)
		want, got := alone.Sandboxes[0], repeated.Sandboxes[i]
		want.Address = got.Address
		if diff := cmp.Diff(want, got, cmpopts.IgnoreTypes(Position{})); diff != "" {
			t.Errorf("%s (-written out +for_each):\n%s", got.Address, diff)
		}
	}
}
