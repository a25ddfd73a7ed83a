package seccomp

import (
	"encoding/binary"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Classic BPF as in linux/bpf_common.h; seccomp's own constraints are in
// seccomp(2): absolute 32-bit loads from struct seccomp_data only.
const (
	opLoad = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	opAnd  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	opJump = unix.BPF_JMP | unix.BPF_JA
	opJeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	opJgt  = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	opJge  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	opRet  = unix.BPF_RET | unix.BPF_K

	offsetNumber = 0 // struct seccomp_data: int nr
	offsetArch   = 4 // __u32 arch
	offsetArgs   = 16

	x32Bit     = 0x40000000
	maxProgram = 4096 // BPF_MAXINSNS
)

// assemble lays the program out as: architecture check, runs of consecutive
// calls with one plain outcome, then one block for each call whose arguments
// matter. Calls that are always allowed cost nothing at run time: the kernel
// works that out once per filter (Linux 5.11).
func assemble(set ruleset) ([]unix.SockFilter, error) {
	var p program
	p.emit(opLoad, offsetArch)
	p.jump(opJeq, auditArch, 1, 0)
	p.emit(opRet, retKillProcess)
	p.emit(opLoad, offsetNumber)
	if hasX32 {
		p.jump(opJge, x32Bit, 0, 1)
		p.emit(opRet, retErrno|uint32(unix.ENOSYS))
	}
	p.jump(opJgt, set.newest, 0, 1)
	p.emit(opRet, retErrno|uint32(unix.ENOSYS))
	for _, r := range runs(set) {
		p.jump(opJge, r.low, 0, 2)
		p.jump(opJgt, r.high, 1, 0)
		p.emit(opRet, r.ret)
	}
	for _, c := range set.calls {
		if _, plain := c.plain(); plain {
			continue
		}
		p.jump(opJeq, c.nr, 1, 0)
		over := p.emit(opJump, 0)
		for _, r := range c.rules {
			if err := p.rule(r); err != nil {
				return nil, fmt.Errorf("system call %d: %w", c.nr, err)
			}
		}
		p.emit(opRet, set.fallback)
		p[over].K = uint32(len(p) - over - 1)
	}
	p.emit(opRet, set.fallback)
	if len(p) > maxProgram {
		return nil, fmt.Errorf("seccomp profile needs %d instructions, the kernel takes %d", len(p), maxProgram)
	}
	return p, nil
}

// run is a range of calls with the same plain outcome.
type run struct{ low, high, ret uint32 }

func runs(set ruleset) []run {
	var out []run
	for _, c := range set.calls {
		ret, plain := c.plain()
		if !plain {
			continue
		}
		if n := len(out); n > 0 && out[n-1].high+1 == c.nr && out[n-1].ret == ret {
			out[n-1].high = c.nr
			continue
		}
		out = append(out, run{c.nr, c.nr, ret})
	}
	return out
}

type program []unix.SockFilter

func (p *program) emit(op uint16, k uint32) (at int) {
	*p = append(*p, unix.SockFilter{Code: op, K: k})
	return len(*p) - 1
}

func (p *program) jump(op uint16, k uint32, yes, no uint8) (at int) {
	*p = append(*p, unix.SockFilter{Code: op, Jt: yes, Jf: no, K: k})
	return len(*p) - 1
}

// rule returns r.ret when all arguments match and runs on behind itself when
// one does not.
func (p *program) rule(r rule) error {
	var miss []int // jumps (opJump) to patch to the end of the rule
	for _, a := range r.args {
		m, err := p.compare(a)
		if err != nil {
			return err
		}
		miss = append(miss, m...)
	}
	p.emit(opRet, r.ret)
	for _, at := range miss {
		(*p)[at].K = uint32(len(*p) - at - 1)
	}
	return nil
}

// compare runs on behind itself when the 64-bit argument matches. Where it does
// not, it takes one of the returned jumps, whose target the caller sets.
func (p *program) compare(a specs.LinuxSeccompArg) (miss []int, err error) {
	low, high := uint32(offsetArgs+8*a.Index), uint32(offsetArgs+8*a.Index+4)
	if bigEndian {
		low, high = high, low
	}
	vlow, vhigh := uint32(a.Value), uint32(a.Value>>32)
	fail := func() { miss = append(miss, p.emit(opJump, 0)) }
	switch a.Op {
	case specs.OpEqualTo, specs.OpMaskedEqual:
		mask := ^uint64(0)
		value := a.Value
		if a.Op == specs.OpMaskedEqual { // value is the mask, valueTwo what must remain
			mask, value = a.Value, a.ValueTwo
		}
		for _, half := range []struct{ offset, mask, value uint32 }{
			{high, uint32(mask >> 32), uint32(value >> 32)},
			{low, uint32(mask), uint32(value)},
		} {
			p.emit(opLoad, half.offset)
			if half.mask != ^uint32(0) {
				p.emit(opAnd, half.mask)
			}
			p.jump(opJeq, half.value, 1, 0)
			fail()
		}
	case specs.OpNotEqual:
		p.emit(opLoad, high)
		p.jump(opJeq, vhigh, 0, 3) // differs already: on behind the jump
		p.emit(opLoad, low)
		p.jump(opJeq, vlow, 0, 1)
		fail()
	case specs.OpGreaterThan, specs.OpGreaterEqual:
		op := uint16(opJgt)
		if a.Op == specs.OpGreaterEqual {
			op = opJge
		}
		p.emit(opLoad, high)
		p.jump(opJgt, vhigh, 4, 0)
		p.jump(opJeq, vhigh, 0, 2)
		p.emit(opLoad, low)
		p.jump(op, vlow, 1, 0)
		fail()
	case specs.OpLessThan, specs.OpLessEqual:
		// Not (argument >= value), or not (argument > value).
		op := uint16(opJge)
		if a.Op == specs.OpLessEqual {
			op = opJgt
		}
		p.emit(opLoad, high)
		p.jump(opJgt, vhigh, 3, 0)
		p.jump(opJeq, vhigh, 0, 3)
		p.emit(opLoad, low)
		p.jump(op, vlow, 0, 1)
		fail()
	default:
		return nil, fmt.Errorf("seccomp operator %s is not supported", a.Op)
	}
	return miss, nil
}

func encode(code []unix.SockFilter) []byte {
	out := make([]byte, 0, 8*len(code))
	for _, f := range code {
		out = binary.NativeEndian.AppendUint16(out, f.Code)
		out = append(out, f.Jt, f.Jf)
		out = binary.NativeEndian.AppendUint32(out, f.K)
	}
	return out
}
