package config

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// benchmarkSandboxes is one block with n instances, each with a computed
// reference, a policy, a port, a claim and a file.
const benchmarkSandboxes = `
variable "n" { type = number }
image "base" { source = "host" }
network "agents" { cidr = "10.88.0.0/16" }
policy "rules" {
  lifetime { ttl = "8h" }
  resources {
    cpu    = 0.5
    memory = "256MiB"
    pids   = 128
  }
  security { drop_capabilities = ["ALL"] }
}
sandbox "w" {
  for_each = { for i in range(var.n) : format("w%05d", i) => i }
  image    = image.base
  command  = ["worker", "--name", each.key]
  env      = { WHO = each.key, GATEWAY = network.agents.gateway, N = each.value }
  labels   = { team = "agents" }
  policies = [policy.rules]
  network { name = network.agents }
  port "http" { container = 8080 }
  volume "work" { path = "/srv/work" }
  file "/etc/app.toml" { content = "name = ${each.key}" }
}
output "addresses" { value = { for k, s in sandbox.w : k => s.address } }
`

// measure also reports the process's own CPU time, all threads and the garbage
// collector included, which other load on the machine does not change.
func measure(b *testing.B, n int, f func()) {
	cpu := func() int64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	b.ReportAllocs()
	start := cpu()
	for b.Loop() {
		f()
	}
	b.ReportMetric(float64(cpu()-start)/float64(b.N)/float64(n), "cpu-ns/sandbox")
}

// BenchmarkEvaluate is to grow linearly with the number of instances.
func BenchmarkEvaluate(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("for_each=%d", n), func(b *testing.B) {
			s := source(b, benchmarkSandboxes)
			s.Variables["n"] = Value{Text: fmt.Sprint(n), Origin: "-var"}
			s.parsed = parseFiles(newSink(), s.Files) // as Load does, once
			measure(b, n, func() {
				if _, diags := s.Evaluate(DefaultSettings(), nil); diags.HasErrors() {
					b.Fatal(show(b, diags))
				}
			})
		})
	}
	// One sandbox in each instance of two modules.
	for _, n := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("modules=%d", n), func(b *testing.B) {
			s := sandboxesInModules(n / 2)
			s.parsed = parseFiles(newSink(), s.Files) // as Load does, once
			measure(b, n, func() {
				if _, diags := s.Evaluate(DefaultSettings(), nil); diags.HasErrors() {
					b.Fatal(show(b, diags))
				}
			})
		})
	}
	// As many blocks, as a generator writes them, that refer to each other.
	for _, n := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("blocks=%d", n), func(b *testing.B) {
			s := source(b, manyBlocks(n))
			s.parsed = parseFiles(newSink(), s.Files) // as Load does, once
			measure(b, n, func() {
				if _, diags := s.Evaluate(DefaultSettings(), nil); diags.HasErrors() {
					b.Fatal(show(b, diags))
				}
			})
		})
	}
}

// BenchmarkParse is what Load adds for files of as many blocks.
func BenchmarkParse(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("blocks=%d", n), func(b *testing.B) {
			files := map[string][]byte{"main.hcl": []byte(manyBlocks(n))}
			measure(b, n, func() { parseFiles(newSink(), files) })
		})
	}
}

// manyBlocks is a configuration of n sandboxes, each referring to the one before.
func manyBlocks(n int) string {
	var text strings.Builder
	text.WriteString("image \"base\" { source = \"host\" }\nlocals { a = \"x\" }\nnetwork \"n\" {}\n")
	for i := range n {
		fmt.Fprintf(&text, "sandbox \"w%d\" {\n  image = image.base\n  command = [\"worker\", local.a]\n  network { name = network.n }\n", i)
		if i > 0 {
			fmt.Fprintf(&text, "  env = { PEER = sandbox.w%d.address }\n", i-1)
		}
		text.WriteString("}\n")
	}
	return text.String()
}
