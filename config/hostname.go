package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// maxHostname is the kernel's limit (HOST_NAME_MAX), in bytes.
const maxHostname = 64

// DefaultHostname is the host name of a sandbox that declares none, from its
// address: KEY.NAME, or NAME without a key, with the same of each module it lies in
// in front (a.ci.x.runner of module.ci["a"].sandbox.runner["x"]), each part cut down
// to lower-case letters, digits and hyphens. Names too long for the kernel are
// shortened and end in a hash of the address. A text that is no address gives a name
// too, so that it can be used on whatever a record holds.
func DefaultHostname(address string) string {
	a, way, err := parseAddress(address)
	if err != nil || a.Type == "" {
		a, way = Address{Name: address}, nil
	}
	return hostname(way, a)
}

// hostname is DefaultHostname of an address in the module that way leads to.
func hostname(way []moduleStep, a Address) string {
	labels := make([]string, 0, 2*len(way)+2)
	for _, step := range slices.Concat(way, []moduleStep{{a.Name, a.Key}}) {
		if step.key != nil {
			labels = append(labels, hostLabel(fmt.Sprint(step.key)))
		}
		labels = append(labels, hostLabel(step.name))
	}
	name := strings.Join(labels, ".")
	if len(name) <= maxHostname {
		return name
	}
	sum := sha256.Sum256([]byte(a.String()))
	suffix := "-" + hex.EncodeToString(sum[:4])
	return strings.TrimRight(name[:maxHostname-len(suffix)], "-.") + suffix
}

// hostLabel makes one label of a host name out of any text; at most 63 bytes.
func hostLabel(s string) string {
	var out strings.Builder
	for _, r := range strings.ToLower(s) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			out.WriteRune(r)
		} else {
			out.WriteByte('-')
		}
	}
	label := strings.Trim(out.String(), "-")
	if label == "" {
		return "x"
	}
	if len(label) > 63 {
		sum := sha256.Sum256([]byte(s))
		label = strings.TrimRight(label[:54], "-") + "-" + hex.EncodeToString(sum[:4])
	}
	return label
}

// checkHostname accepts what RFC 1123 and the kernel do.
func checkHostname(name string) error {
	if name == "" || len(name) > maxHostname {
		return fmt.Errorf("a host name has 1 to %d characters, %q has %d", maxHostname, name, len(name))
	}
	for label := range strings.SplitSeq(name, ".") {
		valid := label != "" && len(label) <= 63 && label[0] != '-' && label[len(label)-1] != '-'
		for _, r := range label {
			valid = valid && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-')
		}
		if !valid {
			return fmt.Errorf("%q is not a host name: use letters, digits and hyphens, in parts of at most 63 separated by dots", name)
		}
	}
	return nil
}
