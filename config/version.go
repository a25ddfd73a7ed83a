package config

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is this build's version, which `pinfold { required_version }` is
// checked against. The build may set it with -ldflags -X.
var Version = "0.1.0"

// satisfies reports whether version fulfils a comma-separated list of
// constraints with Terraform's operators: = != > >= < <= ~>.
func satisfies(version, constraints string) (bool, error) {
	have, _, err := parseVersion(version)
	if err != nil {
		return false, err
	}
	all := true
	for part := range strings.SplitSeq(constraints, ",") {
		part = strings.TrimSpace(part)
		operator := part[:len(part)-len(strings.TrimLeft(part, "=!<>~"))]
		want, parts, err := parseVersion(strings.TrimSpace(part[len(operator):]))
		if err != nil {
			return false, fmt.Errorf("%q is not a version constraint: %w; write for example \">= 0.1, < 1.0\"", part, err)
		}
		order := compareVersions(have, want)
		var holds bool
		switch operator {
		case "", "=":
			holds = order == 0
		case "!=":
			holds = order != 0
		case ">":
			holds = order > 0
		case ">=":
			holds = order >= 0
		case "<":
			holds = order < 0
		case "<=":
			holds = order <= 0
		case "~>":
			// The last part written may grow, those before it may not.
			fixed := max(parts-1, 1)
			holds = order >= 0
			for i := range fixed {
				holds = holds && have[i] == want[i]
			}
		default:
			return false, fmt.Errorf("%q is not a version constraint: operator %q is unknown; use one of = != > >= < <= ~>", part, operator)
		}
		all = all && holds
	}
	return all, nil
}

// parseVersion reads MAJOR[.MINOR[.PATCH]]; a leading v and a -suffix are
// ignored. parts is how many numbers were written.
func parseVersion(text string) (version [3]int, parts int, err error) {
	core, _, _ := strings.Cut(strings.TrimPrefix(text, "v"), "-")
	for field := range strings.SplitSeq(core, ".") {
		n, err := strconv.Atoi(field)
		if parts == 3 || err != nil || n < 0 {
			return version, parts, fmt.Errorf("%q is not a version", text)
		}
		version[parts] = n
		parts++
	}
	return version, parts, nil
}

func compareVersions(a, b [3]int) int {
	for i := range a {
		if a[i] != b[i] {
			return a[i] - b[i]
		}
	}
	return 0
}
