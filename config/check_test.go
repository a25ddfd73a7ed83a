package config

import (
	"strings"
	"testing"
)

// A configuration is checked without values: what they decide is left open, and
// what is wrong whatever they are is found.
func TestCheckWithoutValues(t *testing.T) {
	const good = `
variable "names" { type = set(string) }
variable "count" { type = number }
variable "ttl" { type = string }
variable "any" {}
variable "base" { type = string }
image "base" { source = var.base }
policy "p" {
  lifetime { ttl = var.ttl }
}
sandbox "each" {
  for_each = var.names
  image    = image.base
  command  = ["x", each.key, var.any]
  policies = var.count > 1 ? [policy.p] : []
}
sandbox "many" {
  count   = var.count
  image   = image.base
  command = ["x", file(var.ttl), templatefile("${var.base}.tmpl", { a = var.any })]
  lifecycle { prevent_destroy = var.count > 1 }
}
output "o" { value = [for s in sandbox.each : s.address] }
`
	if diags := source(t, good).Check(DefaultSettings()); diags.HasErrors() {
		t.Error(show(t, diags))
	}
	if _, diags := source(t, good).Evaluate(DefaultSettings(), nil); !diags.HasErrors() {
		t.Error("without values it evaluates")
	}
	for want, bad := range map[string]string{
		"There is no image named":      strings.Replace(good, "image    = image.base", "image    = image.bsae", 1),
		"has no argument":              strings.Replace(good, "command  =", "comand  =", 1),
		"ttl must be longer than zero": good + "policy \"q\" {\n  lifetime { ttl = \"0s\" }\n}\n",
		"List of string required":      strings.Replace(good, "[\"x\", each.key, var.any]", "\"x\"", 1),
		"is needed":                    strings.Replace(good, "count   = var.count", "count   = true ? \"many\" : \"\"", 1),
	} {
		if diags := source(t, bad).Check(DefaultSettings()); !diags.HasErrors() || !strings.Contains(show(t, diags), want) {
			t.Errorf("%s: %s", want, show(t, diags))
		}
	}
}
