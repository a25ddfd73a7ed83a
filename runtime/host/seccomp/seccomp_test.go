package seccomp

import (
	"encoding/binary"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// machine runs a compiled program as the kernel would. The interpreter loads
// big-endian words, so the data is laid out word by word in that order.
type machine struct{ vm *bpf.VM }

func newMachine(t testing.TB, program []byte) machine {
	t.Helper()
	var ins []bpf.Instruction
	for i := 0; i < len(program); i += 8 {
		raw := bpf.RawInstruction{
			Op: binary.NativeEndian.Uint16(program[i:]), Jt: program[i+2], Jf: program[i+3],
			K: binary.NativeEndian.Uint32(program[i+4:]),
		}
		ins = append(ins, raw.Disassemble())
	}
	vm, err := bpf.NewVM(ins)
	if err != nil {
		t.Fatalf("the program is not valid BPF: %v", err)
	}
	return machine{vm}
}

func (m machine) run(t interface{ Fatalf(string, ...any) }, arch, nr uint32, args [6]uint64) uint32 {
	data := binary.BigEndian.AppendUint32(nil, nr)
	data = binary.BigEndian.AppendUint32(data, arch)
	data = append(data, make([]byte, 8)...) // instruction pointer
	for _, a := range args {
		data = binary.BigEndian.AppendUint32(data, uint32(a))
		data = binary.BigEndian.AppendUint32(data, uint32(a>>32))
	}
	ret, err := m.vm.Run(data)
	if err != nil {
		t.Fatalf("running the program: %v", err)
	}
	return uint32(ret)
}

// expected reads the profile itself, by the words of the runtime specification.
func expected(t interface{ Fatalf(string, ...any) }, p *specs.LinuxSeccomp, nr uint32, args [6]uint64) uint32 {
	var newest uint32
	var match, always []uint32
	for _, s := range p.Syscalls {
		ret, err := returnValue(s.Action, s.ErrnoRet)
		if err != nil {
			t.Fatalf("%v", err)
		}
		for _, name := range s.Names {
			n, ok := numberOf(name)
			if !ok {
				continue
			}
			newest = max(newest, n)
			if n != nr {
				continue
			}
			all := true
			for _, a := range s.Args {
				v := args[a.Index]
				var ok bool
				switch a.Op {
				case specs.OpEqualTo:
					ok = v == a.Value
				case specs.OpNotEqual:
					ok = v != a.Value
				case specs.OpLessThan:
					ok = v < a.Value
				case specs.OpLessEqual:
					ok = v <= a.Value
				case specs.OpGreaterThan:
					ok = v > a.Value
				case specs.OpGreaterEqual:
					ok = v >= a.Value
				case specs.OpMaskedEqual:
					ok = v&a.Value == a.ValueTwo
				}
				all = all && ok
			}
			if len(s.Args) == 0 {
				always = append(always, ret)
			} else if all {
				match = append(match, ret)
			}
		}
	}
	switch {
	case nr >= x32Bit && hasX32, nr > newest:
		return retErrno | uint32(unix.ENOSYS)
	case len(always) > 0:
		return always[0]
	case len(match) > 0:
		return match[0]
	}
	ret, err := returnValue(p.DefaultAction, p.DefaultErrnoRet)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return ret
}

func TestDefaultProfileDecidesAsItsTextSays(t *testing.T) {
	for name, caps := range map[string][]string{
		"none": nil, "docker": {"CAP_CHOWN", "CAP_SYS_CHROOT"}, "admin": {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_BPF"},
	} {
		t.Run(name, func(t *testing.T) {
			profile, err := profileFor(caps)
			if err != nil {
				t.Fatal(err)
			}
			program, err := Default(caps)
			if err != nil {
				t.Fatal(err)
			}
			m := newMachine(t, program)
			// Each value that the profile compares with, and its neighbours.
			values := []uint64{0, 1, 1 << 31, 1 << 32, ^uint64(0)}
			for _, s := range profile.Syscalls {
				for _, a := range s.Args {
					values = append(values, a.Value, a.Value-1, a.Value+1, a.Value|1<<32, a.ValueTwo)
				}
			}
			for nr := uint32(0); nr < 600; nr++ {
				for _, v := range values {
					args := [6]uint64{v, v, v, v, v, v}
					if got, want := m.run(t, auditArch, nr, args), expected(t, profile, nr, args); got != want {
						t.Fatalf("call %d with %#x: program says %#x, profile %#x", nr, v, got, want)
					}
				}
			}
			if got := m.run(t, auditArch^1, unix.SYS_READ, [6]uint64{}); got != retKillProcess {
				t.Errorf("foreign architecture: %#x, want the process killed", got)
			}
			if hasX32 {
				if got := m.run(t, auditArch, x32Bit|unix.SYS_READ, [6]uint64{}); got != retErrno|uint32(unix.ENOSYS) {
					t.Errorf("x32 call: %#x, want ENOSYS", got)
				}
			}
		})
	}
}

func TestKnownCallsOfTheDefaultProfile(t *testing.T) {
	program, err := Default([]string{"CAP_CHOWN"})
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, program)
	eperm, enosys := retErrno|uint32(unix.EPERM), retErrno|uint32(unix.ENOSYS)
	for _, c := range []struct {
		name string
		nr   uint32
		arg0 uint64
		want uint32
	}{
		{"read", unix.SYS_READ, 0, retAllow},
		{"execve", unix.SYS_EXECVE, 0, retAllow},
		{"mount", unix.SYS_MOUNT, 0, eperm},
		{"umount2", unix.SYS_UMOUNT2, 0, eperm},
		{"setns", unix.SYS_SETNS, 0, eperm},
		{"bpf", unix.SYS_BPF, 0, eperm},
		{"keyctl", unix.SYS_KEYCTL, 0, eperm},
		{"clone3", unix.SYS_CLONE3, 0, enosys},
		{"clone with a new user namespace", unix.SYS_CLONE, unix.CLONE_NEWUSER, eperm},
		{"clone for a thread", unix.SYS_CLONE, unix.CLONE_VM | unix.CLONE_THREAD, retAllow},
		{"socket inet", unix.SYS_SOCKET, unix.AF_INET, retAllow},
		{"socket vsock", unix.SYS_SOCKET, unix.AF_VSOCK, eperm},
		{"a call of the future", 1 << 20, 0, enosys},
	} {
		if got := m.run(t, auditArch, c.nr, [6]uint64{c.arg0}); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, got, c.want)
		}
	}
}

func TestAnyProfileDecidesAsItsTextSays(t *testing.T) {
	ops := []specs.LinuxSeccompOperator{specs.OpEqualTo, specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual,
		specs.OpGreaterThan, specs.OpGreaterEqual, specs.OpMaskedEqual}
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SampledFrom([]uint64{0, 1, 2, 0xffffffff, 1 << 32, 1<<32 | 1, 1<<32 | 2, 1 << 33, ^uint64(0)})
		p := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno}
		for range rapid.IntRange(1, 8).Draw(t, "rules") {
			s := specs.LinuxSyscall{Names: []string{rapid.SampledFrom([]string{"read", "write", "socket", "clone"}).Draw(t, "name")}, Action: specs.ActAllow}
			if rapid.Bool().Draw(t, "errno") {
				e := rapid.UintRange(1, 100).Draw(t, "value")
				s.Action, s.ErrnoRet = specs.ActErrno, &e
			}
			for i := range rapid.IntRange(0, 3).Draw(t, "args") {
				s.Args = append(s.Args, specs.LinuxSeccompArg{Index: uint(i), Op: rapid.SampledFrom(ops).Draw(t, "op"),
					Value: word.Draw(t, "value"), ValueTwo: word.Draw(t, "valueTwo")})
			}
			p.Syscalls = append(p.Syscalls, s)
		}
		program, err := Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		var ins []bpf.Instruction
		for i := 0; i < len(program); i += 8 {
			ins = append(ins, bpf.RawInstruction{Op: binary.NativeEndian.Uint16(program[i:]), Jt: program[i+2], Jf: program[i+3],
				K: binary.NativeEndian.Uint32(program[i+4:])}.Disassemble())
		}
		vm, err := bpf.NewVM(ins)
		if err != nil {
			t.Fatal(err)
		}
		args := [6]uint64{word.Draw(t, "a0"), word.Draw(t, "a1"), word.Draw(t, "a2")}
		for _, nr := range []uint32{unix.SYS_READ, unix.SYS_WRITE, unix.SYS_SOCKET, unix.SYS_CLONE, unix.SYS_CLOSE} {
			if got, want := (machine{vm}).run(t, auditArch, nr, args), expected(t, p, nr, args); got != want {
				t.Fatalf("call %d %#x: program says %#x, profile %#x", nr, args, got, want)
			}
		}
	})
}

func TestUnsupportedProfilesAreRefused(t *testing.T) {
	for name, p := range map[string]*specs.LinuxSeccomp{
		"action": {DefaultAction: specs.ActNotify},
		"argument twice": {DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow,
			Args: []specs.LinuxSeccompArg{{Index: 0, Op: specs.OpEqualTo}, {Index: 0, Op: specs.OpEqualTo}}}}},
		"operator": {DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow,
			Args: []specs.LinuxSeccompArg{{Op: "SCMP_CMP_ODD"}}}}},
	} {
		if _, err := Compile(p); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func BenchmarkDefault(b *testing.B) {
	for b.Loop() {
		if _, err := Default(nil); err != nil {
			b.Fatal(err)
		}
	}
}
