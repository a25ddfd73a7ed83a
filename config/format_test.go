package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

// Comments stay where they are in every kind of block, and only spaces change.
func TestFormatKeepsComments(t *testing.T) {
	src := `# above
module   "m" { # behind
source="./m" // another
  # alone
  for_each =  toset(["a"])

  /* inline */ name = "x" # end
}
moved { # m
from=sandbox.a
  to = sandbox.b
}
removed {
  from   = sandbox.c
  lifecycle { # l
   destroy = false # kept
  }
}
import {
to=volume.v
 id="x" # id
}
check "c" {
  assert {
     condition = true # yes
   error_message="no"
 }
}
variable "v" {
  validation { # rule
    condition = var.v != ""
    error_message = "empty" # m
  }
}
sandbox "s" {
  dynamic "port" { # d
   for_each=var.ports
     labels = [port.key]
    content { container = port.value } # c
  }
  lifecycle {
    precondition { # p
      condition=true
      error_message = "x"
    }
    replace_triggered_by=[image.base] # t
  }
}
# below
`
	want := `# above
module "m" {     # behind
  source = "./m" // another
  # alone
  for_each = toset(["a"])

  /* inline */ name = "x" # end
}
moved { # m
  from = sandbox.a
  to   = sandbox.b
}
removed {
  from = sandbox.c
  lifecycle {       # l
    destroy = false # kept
  }
}
import {
  to = volume.v
  id = "x" # id
}
check "c" {
  assert {
    condition     = true # yes
    error_message = "no"
  }
}
variable "v" {
  validation { # rule
    condition     = var.v != ""
    error_message = "empty" # m
  }
}
sandbox "s" {
  dynamic "port" { # d
    for_each = var.ports
    labels   = [port.key]
    content { container = port.value } # c
  }
  lifecycle {
    precondition { # p
      condition     = true
      error_message = "x"
    }
    replace_triggered_by = [image.base] # t
  }
}
# below
`
	got, diags := Format("main.hcl", []byte(src))
	if diff := cmp.Diff(want, string(got)); diff != "" || len(diags) > 0 {
		t.Errorf("%s%s", diff, show(t, diags))
	}
}

// Laying out what the language can say changes neither its meaning nor, a second
// time, anything at all.
func TestFormatKeepsMeaning(t *testing.T) {
	for _, s := range scenarios(t, "evaluate") {
		before, diags := s.run()
		if diags.HasErrors() {
			t.Fatal(show(t, diags))
		}
		laid := &scenario{path: s.path, archive: &txtar.Archive{}, dir: t.TempDir(), settings: s.settings, inputs: s.inputs, exports: s.exports}
		for _, f := range s.archive.Files {
			if strings.HasSuffix(f.Name, ".hcl") {
				once, _ := Format(f.Name, f.Data)
				if again, _ := Format(f.Name, once); string(again) != string(once) {
					t.Errorf("%s: %s changes when it is laid out again", s.path, f.Name)
				}
				f.Data = once
			}
			writeFile(t, laid.dir+"/"+f.Name, f.Data)
		}
		after, diags := laid.run()
		if diags.HasErrors() {
			t.Fatalf("%s: %s", s.path, show(t, diags))
		}
		if diff := cmp.Diff(s.anywhere(t, readable(t, before)), laid.anywhere(t, readable(t, after))); diff != "" {
			t.Errorf("%s means something else:\n%s", s.path, diff)
		}
	}
}
