package config

import (
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// Format lays a file out in the canonical style, comments kept. Text that is
// not HCL is returned unchanged with the syntax errors.
func Format(name string, src []byte) ([]byte, Diagnostics) {
	found := newSink()
	found.source(name, src, nil)
	if _, diags := parseConfig(src, name); diags.HasErrors() {
		found.addAll("", diags)
		return src, found.sorted()
	}
	return hclwrite.Format(src), nil
}
