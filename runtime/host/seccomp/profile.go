// Package seccomp turns Docker's default seccomp profile into the BPF program
// that the kernel takes, for this machine's native architecture.
//
// It is here because compiling the profile through libseccomp at every start
// costs more than everything else of a start together. A compiled program is
// plain data: it is made once per set of capabilities and handed to every
// sandbox, whose PID 1 installs it.
//
// Only the native system call interface passes: 32-bit programs on a 64-bit
// kernel are killed at their first call, and x32 calls fail with ENOSYS.
package seccomp

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	moby "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Default compiles Docker's default profile as it applies to processes with
// these capabilities (CAP_ names) on this kernel. The result is an array of
// struct sock_filter in native byte order.
func Default(capabilities []string) ([]byte, error) {
	profile, err := profileFor(capabilities)
	if err != nil {
		return nil, err
	}
	return Compile(profile)
}

func profileFor(capabilities []string) (*specs.LinuxSeccomp, error) {
	spec := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: capabilities}}}
	profile, err := moby.GetDefaultProfile(spec)
	if err != nil {
		return nil, fmt.Errorf("cannot derive the default seccomp profile: %w", err)
	}
	return profile, nil
}

// Compile turns a profile into a BPF program. Names that this architecture
// does not have are passed over, as libseccomp does. Actions other than allow
// and errno are refused.
//
// Calls newer than every call the profile names answer ENOSYS rather than the
// default error, so that programs fall back to older calls as they would on an
// older kernel.
func Compile(profile *specs.LinuxSeccomp) ([]byte, error) {
	rules, err := resolve(profile)
	if err != nil {
		return nil, err
	}
	code, err := assemble(rules)
	if err != nil {
		return nil, err
	}
	return encode(code), nil
}

// syscallNumber is one row of the generated table of this architecture.
type syscallNumber struct {
	name string
	nr   uint32
}

func numberOf(name string) (uint32, bool) {
	i, ok := slices.BinarySearchFunc(syscalls[:], name, func(s syscallNumber, n string) int {
		return strings.Compare(s.name, n)
	})
	if ok {
		return syscalls[i].nr, true
	}
	nr, ok := alias(name)
	return nr, ok
}

// ruleset is a profile in numbers.
type ruleset struct {
	fallback uint32 // the return value for calls without a matching rule
	newest   uint32 // the highest number any rule names
	calls    []call // in order of number, each once
}

// call is what holds for one system call: the first rule whose arguments all
// match decides.
type call struct {
	nr    uint32
	rules []rule
}

type rule struct {
	args []specs.LinuxSeccompArg // none: always matches
	ret  uint32
}

// plain tells whether the call's outcome does not depend on its arguments, and
// what it is.
func (c call) plain() (ret uint32, ok bool) {
	if len(c.rules) == 1 && len(c.rules[0].args) == 0 {
		return c.rules[0].ret, true
	}
	return 0, false
}

func resolve(profile *specs.LinuxSeccomp) (ruleset, error) {
	var set ruleset
	var err error
	if set.fallback, err = returnValue(profile.DefaultAction, profile.DefaultErrnoRet); err != nil {
		return set, err
	}
	byNumber := map[uint32]*call{}
	for _, s := range profile.Syscalls {
		ret, err := returnValue(s.Action, s.ErrnoRet)
		if err != nil {
			return set, err
		}
		seen := map[uint]bool{}
		for _, a := range s.Args {
			if a.Index > 5 || seen[a.Index] {
				return set, fmt.Errorf("seccomp rule for %v: argument %d is out of range or named twice", s.Names, a.Index)
			}
			seen[a.Index] = true
		}
		for _, name := range s.Names {
			nr, ok := numberOf(name)
			if !ok {
				continue
			}
			c := byNumber[nr]
			if c == nil {
				c = &call{nr: nr}
				byNumber[nr] = c
			}
			c.add(rule{args: s.Args, ret: ret})
			set.newest = max(set.newest, nr)
		}
	}
	for _, c := range byNumber {
		set.calls = append(set.calls, *c)
	}
	slices.SortFunc(set.calls, func(a, b call) int { return int(a.nr) - int(b.nr) })
	return set, nil
}

// add keeps a rule without arguments as the only one: profiles add
// unconditional permission for privileged processes beside restricted ones.
func (c *call) add(r rule) {
	if _, plain := c.plain(); plain {
		return
	}
	if len(r.args) == 0 {
		c.rules = []rule{r}
		return
	}
	c.rules = append(c.rules, r)
}

const (
	retAllow       = 0x7fff0000 // SECCOMP_RET_ALLOW
	retErrno       = 0x00050000 // SECCOMP_RET_ERRNO
	retKillProcess = 0x80000000 // SECCOMP_RET_KILL_PROCESS
)

func returnValue(action specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	switch action {
	case specs.ActAllow:
		return retAllow, nil
	case specs.ActErrno:
		e := uint(unix.EPERM)
		if errno != nil {
			e = *errno
		}
		if e > 4095 { // MAX_ERRNO of the kernel
			return 0, fmt.Errorf("seccomp profile: errno %d is out of range", e)
		}
		return retErrno | uint32(e), nil
	default:
		return 0, errors.New("seccomp profile: action " + string(action) + " is not supported")
	}
}
