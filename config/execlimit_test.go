package config

import (
	"fmt"
	"strings"
	"testing"
)

// What no kernel would start is refused with words, and what it starts is not:
// the limit of one string is execve(2)'s, its end included.
func TestCommandsThatNoKernelStarts(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	for name, c := range map[string]struct {
		body, want string
	}{
		"argument at the limit":   {fmt.Sprintf("command = [\"x\", %q]", long(maxString)), ""},
		"argument beyond it":      {fmt.Sprintf("command = [\"x\", %q]", long(maxString+1)), "Argument 1 has 131072 bytes; the kernel starts no program with one longer than 131071."},
		"variable at the limit":   {fmt.Sprintf("command = [\"x\"]\n env = { AB = %q }", long(maxString-3)), ""},
		"variable beyond it":      {fmt.Sprintf("command = [\"x\"]\n env = { AB = %q }", long(maxString-2)), `Variable "AB" has 131072 bytes`},
		"many arguments":          {fmt.Sprintf("command = [for i in range(19): %q]", long(100_000-9)), ""},
		"too many arguments":      {fmt.Sprintf("command = [for i in range(20): %q]", long(100_000)), "command and env have 2000180 bytes together"},
		"too many small ones":     {"command = [for i in range(99999): \"123456789012\"]", "command and env have"},
		"too many variables":      {fmt.Sprintf("command = [\"x\"]\n env = { for i in range(20): format(\"V%%02d\", i) => %q }", long(100_000)), "command and env have"},
		"too long only together":  {fmt.Sprintf("command = [for i in range(10): %q]\n env = { for i in range(10): format(\"V%%02d\", i) => %q }", long(100_000), long(100_000)), "command and env have"},
		"a health command's":      {fmt.Sprintf("command = [\"x\"]\n health { command = [%q] }", long(maxString+1)), "Argument 0 has 131072 bytes"},
		"instance by instance":    {fmt.Sprintf("for_each = toset([\"a\", \"b\"])\n command = [\"x\", \"${each.key}%s\"]", long(maxString)), "Argument 1 has 131072 bytes"},
		"a file may be that long": {fmt.Sprintf("command = [\"x\"]\n file \"/x\" { content = %q }", long(2_000_000)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			src := mustLoad(t, directory(t, map[string]string{"main.hcl": "image \"base\" { source = \"host\" }\nsandbox \"a\" {\n image = image.base\n " + c.body + "\n}\n"}), Inputs{})
			_, diags := src.Evaluate(DefaultSettings(), nil)
			switch {
			case c.want == "" && diags.HasErrors():
				t.Fatal(diags[0].Summary, diags[0].Detail)
			case c.want != "" && (!diags.HasErrors() || !strings.Contains(diags[0].Detail, c.want)):
				t.Fatalf("want %q, got %v", c.want, diags)
			}
		})
	}
}
