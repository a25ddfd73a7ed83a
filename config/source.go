package config

import (
	"bytes"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// Source is everything an evaluation depends on, captured: it can be stored in
// a plan file or sent to the agent, and evaluates to the same thing there. The
// files of modules and those that file(), templatefile() and fileset() read are part of it, so an
// evaluation never reads the disk a second time.
type Source struct {
	Dir       string              `json:"dir"`             // real path of the configuration's directory
	Files     map[string][]byte   `json:"files"`           // *.hcl by path relative to Dir with slashes: main.hcl, and modules/ci/main.hcl of a module that is called
	Variables map[string]Value    `json:"variables"`       // what was set from outside, by variable name; precedence already applied
	Reads     map[string][]byte   `json:"reads,omitempty"` // files read by functions, by path as the function resolved it
	Globs     map[string][]string `json:"globs,omitempty"` // results of fileset and fileexists, by the call

	// parsed is Files' syntax trees, kept by Load so that evaluating again is
	// cheap; a Source that came from JSON has none and parses each time.
	parsed []parsedFile
	// unread tells why something could not be read, by its key in Reads or Globs, or
	// the directory of a module with a slash at its end.
	unread map[string]string
}

// Value is one input variable's value before its type is applied.
type Value struct {
	Text   string `json:"text"`   // the words of -var or the environment, or the expression's source from a file
	Expr   bool   `json:"expr"`   // Text is an HCL expression (from a file), not a bare word
	Origin string `json:"origin"` // "-var", "-var-file=x.pfvars", "PINFOLD_VAR_x", "pinfold.pfvars": for error texts
	// File, Line and Column are where Text begins, when it came from a file.
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

func (v Value) fromEnvironment() bool { return strings.HasPrefix(v.Origin, environPrefix) }

// file is the name that diagnostics about the value carry.
func (v Value) file() string {
	if v.File != "" {
		return v.File
	}
	return v.Origin
}

func (v Value) start() hcl.Pos { return hcl.Pos{Line: max(v.Line, 1), Column: max(v.Column, 1)} }

// place is the first line of the value in its file; nil for one from the
// command line or the environment.
func (v Value) place() *hcl.Range {
	if v.File == "" {
		return nil
	}
	first, _, _ := strings.Cut(v.Text, "\n")
	start := v.start()
	end := start
	end.Column += len([]rune(first))
	end.Byte += len(first)
	return &hcl.Range{Filename: v.File, Start: start, End: end}
}

// lines is the value's text with its columns as they are in its file.
func (v Value) lines() []byte {
	return append(bytes.Repeat([]byte(" "), v.start().Column-1), v.Text...)
}

// Inputs say where Load takes variable values from, beside pinfold.pfvars and
// *.auto.pfvars of the directory.
type Inputs struct {
	Vars     []string // "k=v" in order, from -var
	VarFiles []string // paths, from -var-file
	// Order keeps -var and -var-file in command-line order, as Terraform does:
	// entries "var:I" or "file:I". Nil: files first, then vars.
	Order   []string
	Environ []string // os.Environ form; PINFOLD_VAR_* are used
}

// Settings are the host settings (host.hcl), common to command line and agent.
type Settings struct {
	File           string   `json:"file,omitempty"`             // where they came from; empty: defaults
	Raw            []byte   `json:"raw,omitempty"`              // the file's text: policies in it are evaluated from here
	MaxLifetime    Duration `json:"max_lifetime,omitempty"`     // longest distance from now to a deadline; 0: no cap
	ExpiryWarning  Duration `json:"expiry_warning,omitempty"`   // how long before a deadline an event warns of it; 0: no warning; 15m by default
	MaxDestroy     float64  `json:"max_destroy"`                // share (0 to 1) of recorded sandboxes and volumes that one change of configuration may delete or replace without being asked for; default 0.5
	AllowHostPaths []string `json:"allow_host_paths,omitempty"` // absolute directories that host-path mounts may come from; default none
	AddressPools   []string `json:"address_pools"`              // prefixes that networks without cidr are cut from, a /24 each; default 10.88.0.0/16
	CgroupParent   string   `json:"cgroup_parent"`              // default pinfold
}
