package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zclconf/go-cty/cty"
	"golang.org/x/sys/unix"
)

var asBool = kind[bool]{cty.Bool, func(v cty.Value) (bool, error) { return v.True(), nil }}

// asText is a string that passes a check.
func asText(check func(string) error) kind[string] {
	return kind[string]{cty.String, func(v cty.Value) (string, error) { return v.AsString(), check(v.AsString()) }}
}

// asParsed is a string that is turned into something else.
func asParsed[T any](parse func(string) (T, error)) kind[T] {
	return kind[T]{cty.String, func(v cty.Value) (T, error) { return parse(v.AsString()) }}
}

var asAnyText = asText(noNUL)

// noNUL refuses what can be neither an argument, a variable nor a file name.
func noNUL(s string) error {
	if strings.ContainsRune(s, 0) {
		return errors.New("it contains a NUL byte")
	}
	return nil
}

// asOneOf is one of a few words. later are those that mean something but are
// not enforced yet.
func asOneOf(words []string, later ...string) kind[string] {
	return asText(func(s string) error {
		switch {
		case slices.Contains(words, s):
			return nil
		case slices.Contains(later, s):
			return fmt.Errorf("%q is not supported yet: nothing enforces it in this version. Use %s", s, orList(words))
		}
		return fmt.Errorf("%q is not known here; use %s%s", s, orList(words), didYouMean(s, words))
	})
}

// orList is "a", "b" or "c".
func orList(words []string) string {
	quotedWords := make([]string, len(words))
	for i, w := range words {
		quotedWords[i] = strconv.Quote(w)
	}
	if len(words) == 1 {
		return quotedWords[0]
	}
	last := len(words) - 1
	return strings.Join(quotedWords[:last], ", ") + " or " + quotedWords[last]
}

// asWhole is an integer within bounds.
func asWhole(low, high int64) kind[int64] {
	return kind[int64]{cty.Number, func(v cty.Value) (int64, error) {
		n, accuracy := v.AsBigFloat().Int64()
		if accuracy != 0 || n < low || n > high {
			return 0, fmt.Errorf("a whole number from %d to %d is needed, not %s", low, high, v.AsBigFloat().Text('g', 20))
		}
		return n, nil
	}}
}

func asPort(low int64) kind[int] { return asInt(low, 65535) }

// asSize is a number of bytes or a text for ParseSize.
var asSize = kind[int64]{cty.String, func(v cty.Value) (int64, error) { return ParseSize(v.AsString()) }}

// leastMemory is what a sandbox has room for while it is made: its init takes some
// 2 MiB before the command runs. Docker's bound is the same.
const leastMemory = 6 << 20

// asMemory is a size for a limit of memory, 0 for none.
var asMemory = kind[int64]{cty.String, func(v cty.Value) (int64, error) {
	n, err := ParseSize(v.AsString())
	if err == nil && n != 0 && n < leastMemory {
		err = fmt.Errorf("a limit of at least 6MiB is needed, or 0 for none: %d bytes do not hold a sandbox's first process (a number without a unit counts bytes)", n)
	}
	return n, err
}}

// asCPU is a number of cores. The kernel's shortest quota is 1 ms of each 100
// ms period, which is 0.01 cores.
var asCPU = kind[float64]{cty.Number, func(v cty.Value) (float64, error) {
	f, _ := v.AsBigFloat().Float64()
	if f != 0 && f < 0.01 || f > 4096 {
		return 0, fmt.Errorf("a number of cores from 0.01 to 4096 is needed, or 0 for no limit, not %s", v.AsBigFloat().Text('g', 10))
	}
	return f, nil
}}

// asPIDs is a limit of processes and threads. The pids cgroup counts the
// sandbox's own init (PID 1), so the command needs a second.
var asPIDs = kind[int64]{cty.Number, func(v cty.Value) (int64, error) {
	n, err := asWhole(0, 1<<40).get(v)
	if err == nil && n == 1 {
		err = errors.New("1 leaves no room for the command: the sandbox's init counts too. Use 2 or more, or 0 for no limit")
	}
	return n, err
}}

// never switches a deadline off that a policy set.
const never = "never"

// asTTL is a length of life, or never.
var asTTL = asParsed(func(s string) (Duration, error) {
	if s == never {
		return 0, nil
	}
	d, err := ParseDuration(s)
	if err != nil {
		return 0, err
	}
	if d <= 0 {
		return 0, fmt.Errorf("a sandbox cannot live for %q: ttl must be longer than zero. For no limit write ttl = \"never\", or leave it out", s)
	}
	return d, nil
})

// asIdle is a time without use, or never.
var asIdle = asParsed(func(s string) (Duration, error) {
	if s == never {
		return 0, nil
	}
	d, err := ParseDuration(s)
	if err == nil && d <= 0 {
		err = fmt.Errorf("%q is not longer than zero: a sandbox would be idle at once. For no idle rule write idle_timeout = \"never\", or leave it out", s)
	}
	return d, err
})

// asNotNegative is a duration of zero or more.
var asNotNegative = asParsed(func(s string) (Duration, error) {
	d, err := ParseDuration(s)
	if err == nil && d < 0 {
		err = fmt.Errorf("%q is negative", s)
	}
	return d, err
})

// shortestProbe bounds how much of a host probes may take.
const shortestProbe = Duration(100 * time.Millisecond)

// asProbeTime is the distance or length of probes.
var asProbeTime = asParsed(func(s string) (Duration, error) {
	d, err := ParseDuration(s)
	if err == nil && d < shortestProbe {
		err = fmt.Errorf("%q is too short: probes that follow or end within less than %s would load the host more than the sandbox does", s, shortestProbe)
	}
	return d, err
})

// asProbeURL is what an http probe asks for: of the sandbox itself, from inside.
var asProbeURL = asText(func(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a URL: %w. Write one such as http://127.0.0.1:8080/ready", s, errors.Unwrap(err))
	case u.Scheme == "https":
		return fmt.Errorf("%q cannot be probed: http:// only, as a sandbox's certificate proves nothing here. Use a plain port, tcp, or a command", s)
	case u.Scheme != "http" || u.Hostname() == "":
		return fmt.Errorf("%q is not a URL that can be probed: write http://HOST:PORT/PATH as seen from inside the sandbox, such as http://127.0.0.1:8080/ready", s)
	case !isLoopback(u.Hostname()):
		return fmt.Errorf("%q asks %s, but a probe asks the sandbox itself, from inside: write 127.0.0.1 or localhost as the host, such as http://127.0.0.1:8080/ready. To look at something else use command", s, u.Hostname())
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return fmt.Errorf("%q has no valid port: use 1 to 65535", s)
		}
	}
	return nil
})

// isLoopback tells whether a URL's host is the one that asks.
func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.IsLoopback() && addr.Zone() == ""
}

// asInt is an integer within bounds.
func asInt(low, high int64) kind[int] {
	whole := asWhole(low, high)
	return kind[int]{cty.Number, func(v cty.Value) (int, error) {
		n, err := whole.get(v)
		return int(n), err
	}}
}

// asPositive is a duration longer than zero.
func asPositive(hint string) kind[Duration] {
	return asParsed(func(s string) (Duration, error) {
		d, err := ParseDuration(s)
		if err == nil && d <= 0 {
			err = fmt.Errorf("%q is not longer than zero%s", s, hint)
		}
		return d, err
	})
}

// asInstant is an absolute instant, or never.
var asInstant = asParsed(func(s string) (time.Time, error) {
	if s == never {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return t, fmt.Errorf("%q is not an instant: write it as RFC 3339 has it, such as 2026-12-01T18:00:00Z or 2026-12-01T18:00:00+02:00, or \"never\". For a time after the start use lifetime { ttl = … }", s)
	}
	if t.Year() < 1970 || t.Year() > 9999 {
		return t, fmt.Errorf("%q is out of range: use the years 1970 to 9999", s)
	}
	return t.UTC(), nil
})

// inside checks a path inside a sandbox that something is put at.
func inside(p string) error {
	if err := absolute(p); err != nil {
		return err
	}
	if p == "/" {
		return errors.New("the root itself cannot be covered; name a directory below it")
	}
	for _, kernel := range []string{"/proc", "/sys", "/dev"} {
		if p == kernel || strings.HasPrefix(p, kernel+"/") && kernel != "/dev" {
			return fmt.Errorf("%s belongs to the kernel's own file systems in every sandbox; choose another place", p)
		}
	}
	return nil
}

// absolute checks that a path is absolute and in its shortest form.
func absolute(p string) error {
	if err := noNUL(p); err != nil {
		return err
	}
	switch clean := path.Clean(p); {
	case !strings.HasPrefix(p, "/"):
		return fmt.Errorf("%q is not an absolute path; write %q", p, "/"+strings.TrimPrefix(path.Clean("/"+p), "/"))
	case clean != p:
		return fmt.Errorf("%q is not in its shortest form; write %q", p, clean)
	case len(p) > 4095:
		return errors.New("the path is longer than 4095 bytes")
	}
	return nil
}

var userPattern = regexp.MustCompile(`^([a-z_][a-z0-9_.-]{0,31}\$?|[0-9]{1,10})(:([a-z_][a-z0-9_.-]{0,31}\$?|[0-9]{1,10}))?$`)

var asUser = asText(func(s string) error {
	if !userPattern.MatchString(s) {
		return fmt.Errorf("%q is no user: write USER, UID, USER:GROUP or UID:GID, such as 1000:1000", s)
	}
	for part := range strings.SplitSeq(s, ":") {
		if n, err := strconv.ParseUint(part, 10, 64); err == nil && n > 1<<32-2 {
			return fmt.Errorf("id %d is larger than the kernel's largest, 4294967294", n)
		}
	}
	return nil
})

// asSignal is a signal's name, with or without SIG, that can end a process.
var asSignal = asParsed(func(s string) (string, error) {
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(s), "SIG")
	switch name {
	case "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGCHLD":
		return "", fmt.Errorf("%s does not end a process; use SIGTERM, SIGINT, SIGQUIT or SIGKILL", name)
	}
	if unix.SignalNum(name) == 0 {
		return "", fmt.Errorf("%q is not a signal; write a name such as SIGTERM or SIGINT%s", s, didYouMean(name, SignalNames()))
	}
	return name, nil
})

var modePattern = regexp.MustCompile(`^0?[0-7]{3}$`)

// asMode is a file's permission bits, four octal digits.
var asMode = asParsed(func(s string) (string, error) {
	if !modePattern.MatchString(s) {
		return "", fmt.Errorf("%q is not a file mode; write three octal digits after a 0, in quotes, such as \"0644\"", s)
	}
	return "0" + s[len(s)-3:], nil
})

// asListenAddress is an IPv4 address on the host that a port is published at.
var asListenAddress = asParsed(func(s string) (string, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return "", fmt.Errorf("%q is not an address; write one such as 127.0.0.1, or 0.0.0.0 for all of the host's", s)
	case !a.Is4():
		return "", fmt.Errorf("%q is not supported yet: ports are published on IPv4 addresses only", s)
	}
	return a.String(), nil
})

// asCIDR is a network's address range, canonical.
var asCIDR = asParsed(func(s string) (string, error) {
	p, err := parseRange(s, 16, 29)
	return p.String(), err
})

// parseRange reads an IPv4 range of /low to /high whose address is its first.
func parseRange(s string, low, high int) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return p, fmt.Errorf("%q is not an address range; write one such as 10.88.0.0/24", s)
	case !p.Addr().Is4():
		return p, fmt.Errorf("%q is not supported yet: networks have IPv4 ranges only", s)
	case p.Bits() < low || p.Bits() > high:
		return p, fmt.Errorf("%q is a range of the wrong size: use /%d to /%d, such as %s", s, low, high, netip.PrefixFrom(p.Addr(), 24).Masked())
	case p.Masked() != p:
		return p, fmt.Errorf("%q is not the first address of its range. Did you mean %q?", s, p.Masked())
	case !assignable(p):
		return p, fmt.Errorf("%s cannot be used for sandboxes: it is reserved for loopback, link-local or multicast addresses; use a part of 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16", p)
	}
	return p, nil
}

// assignable reports whether hosts can have addresses of the range.
func assignable(p netip.Prefix) bool {
	for _, reserved := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3"} {
		if netip.MustParsePrefix(reserved).Overlaps(p) {
			return false
		}
	}
	return true
}

// gatewayOf is the first address of a range, which the bridge has.
func gatewayOf(p netip.Prefix) netip.Addr { return p.Addr().Next() }
