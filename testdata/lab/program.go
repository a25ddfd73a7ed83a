package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"pinfold/testdata/lab/wire"
)

// program is what a run does.
type program struct {
	suites    []wire.Suite
	compiler  bool // the suites need one
	cuts      int
	shutdowns int
	clock     bool
}

var (
	short = program{cuts: 3, shutdowns: 1, suites: []wire.Suite{
		// Where kernels and cgroup versions differ.
		{Name: "runtime/host", Run: "^Test(SandboxOutlivesItsCreator|FrozenAndCreatedNeverRunWhenStopped|LimitsHoldAndChange|OutOfMemoryIsToldApart|ExecAtTheProcessLimit)$"},
		{Name: "runtime/network", Run: "^Test(SameNetworkTalksOthersDoNot|PublishedOnLoopback|SpoofingIsDropped)$"},
	}}
	long = program{cuts: 20, shutdowns: 2, clock: true, compiler: true, suites: []wire.Suite{
		// Those left out have times of their own that an emulated processor is too
		// slow for.
		{Name: "runtime/host", Skip: "^TestCopyWhileTheTreeChanges$"},
		{Name: "runtime/network"},
		{Name: "runtime/conformance"},
		{Name: "reconcile/onhost", Skip: "^Test(AFailedWakeHurtsNobody|ProbesAreAskedFromInsideAndLeaveNothing|NeverEarlyHundredSandboxes)$"},
		{Name: "cmd/cli", Run: "^Test(Script|Terminal)$"}, // the others need no kernel
	}}
)

// narrow leaves out suites and tests that were not asked for.
func (p *program) narrow(suite, tests string) {
	p.suites = slices.DeleteFunc(slices.Clone(p.suites), func(s wire.Suite) bool { return suite != "" && s.Name != suite })
	if tests == "" {
		return
	}
	for i := range p.suites {
		p.suites[i].Run = tests
	}
}

// boot is one life of the machine and how it is to end.
type boot struct {
	wire.Task
	bound time.Duration

	// Of a power cut:
	stage  string        // after which word
	within time.Duration // and how long after it at most
	loss   float64       // of what is not flushed
}

func (b boot) String() string {
	s := b.Do
	if b.Ended != "" {
		s += fmt.Sprintf(" after a %s", b.Ended)
	}
	if b.Off > 0 {
		s += fmt.Sprintf(", off for %s", b.Off)
	}
	return s
}

const workBound = 10 * time.Minute

// boots draws the sequence of lives.
func (p program) boots(random *rand.Rand) []boot {
	var all []boot
	if len(p.suites) > 0 {
		all = append(all, boot{Task: wire.Task{Do: wire.Suites, Then: wire.Off, Suites: p.suites}, bound: 2 * time.Hour})
	}
	if p.cuts+p.shutdowns == 0 {
		return all
	}
	ends := make([]string, 0, p.cuts+p.shutdowns)
	for range p.cuts {
		ends = append(ends, wire.Cut)
	}
	for range p.shutdowns {
		ends = append(ends, wire.Shutdown)
	}
	random.Shuffle(len(ends), func(i, j int) { ends[i], ends[j] = ends[j], ends[i] })
	ended := ""
	for i, then := range ends {
		b := boot{Task: wire.Task{Do: wire.Work, Ended: ended, Then: then}, bound: workBound}
		b.stage, b.within = wire.StageWorking, 12*time.Second
		// Some cuts come while the machine still recovers from the one before.
		if i > 0 && random.IntN(4) == 0 {
			b.stage, b.within = wire.StageServing, 20*time.Second
		}
		b.loss = []float64{0, 0.5, 1}[random.IntN(3)]
		if i > 0 && random.IntN(2) == 0 {
			b.Off = 2 * time.Hour
		}
		all = append(all, b)
		ended = then
	}
	if p.clock {
		all = append(all, boot{Task: wire.Task{Do: wire.Clock, Ended: ended, Then: wire.Shutdown}, bound: workBound})
		ended = wire.Shutdown
	}
	return append(all, boot{Task: wire.Task{Do: wire.Finish, Ended: ended, Then: wire.Off}, bound: workBound})
}
