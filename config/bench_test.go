package config

import (
	"fmt"
	"strings"
	"testing"
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

// BenchmarkEvaluate is to grow linearly with the number of instances.
func BenchmarkEvaluate(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("for_each=%d", n), func(b *testing.B) {
			s := source(b, benchmarkSandboxes)
			s.Variables["n"] = Value{Text: fmt.Sprint(n), Origin: "-var"}
			b.ReportAllocs()
			for b.Loop() {
				if _, diags := s.Evaluate(DefaultSettings(), nil); diags.HasErrors() {
					b.Fatal(show(b, diags))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/sandbox")
		})
	}
	// As many blocks, as a generator writes them, that refer to each other.
	for _, n := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("blocks=%d", n), func(b *testing.B) {
			var text strings.Builder
			text.WriteString("image \"base\" { source = \"host\" }\nlocals { a = \"x\" }\nnetwork \"n\" {}\n")
			for i := range n {
				fmt.Fprintf(&text, "sandbox \"w%d\" {\n  image = image.base\n  command = [\"worker\", local.a]\n  network { name = network.n }\n", i)
				if i > 0 {
					fmt.Fprintf(&text, "  env = { PEER = sandbox.w%d.address }\n", i-1)
				}
				text.WriteString("}\n")
			}
			s := source(b, text.String())
			b.ReportAllocs()
			for b.Loop() {
				if _, diags := s.Evaluate(DefaultSettings(), nil); diags.HasErrors() {
					b.Fatal(show(b, diags))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/sandbox")
		})
	}
}
