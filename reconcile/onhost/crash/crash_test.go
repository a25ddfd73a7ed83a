//go:build failpoints

package crash

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime/failpoint/names"
)

// point is one pass of a failpoint.
type point struct {
	name, when string
	nth        int
}

func (p point) arm(what string) string {
	return fmt.Sprintf("%s@%s:%d=%s", p.name, p.when, p.nth, what)
}
func (p point) String() string { return fmt.Sprintf("%s %s %d", p.when, p.name, p.nth) }

// each has all its passes tried: an update of the state is another one each time.
const eachPass = "engine.state.update"

// passed reads a log of passed points: of each the first pass, and the last one.
func passed(log string) (points []point, err error) {
	f, err := os.Open(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	count := map[[2]string]int{}
	var order [][2]string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, when, ok := strings.Cut(lines.Text(), "@")
		if !ok {
			return nil, fmt.Errorf("%s: %q is no point", log, lines.Text())
		}
		key := [2]string{name, when}
		if count[key] == 0 {
			order = append(order, key)
		}
		count[key]++
	}
	for _, key := range order {
		for n := 1; n <= count[key]; n++ {
			if n == 1 || n == count[key] || key[0] == eachPass {
				points = append(points, point{key[0], key[1], n})
			}
		}
	}
	return points, lines.Err()
}

// kept is what no crash may take from a sandbox.
type kept struct {
	UID, Lease string
	Address    string
	Ports      map[string]int
	Volumes    map[string]string
	PID        int
	Instance   string
}

// picture is a world as it is at one moment.
type picture struct {
	phases string
	of     map[string]kept
	ids    map[string]string
	files  map[string]string // the logs in volumes and layers, by path
}

func (w *world) picture() *picture {
	w.Helper()
	ctx := context.Background()
	p := &picture{of: map[string]kept{}, ids: map[string]string{}, files: map[string]string{}}
	res, err := w.List(ctx)
	w.must(err)
	var phases []string
	for _, v := range res.Sandboxes {
		d, err := w.Describe(ctx, v.Address)
		w.must(err)
		k := kept{UID: d.UID, Lease: d.Lease.Start.UTC().Format(time.RFC3339Nano), Ports: map[string]int{}, Volumes: v.Volumes}
		if v.AddressV4 != nil {
			k.Address = *v.AddressV4
		}
		if v.PID != nil {
			k.PID = *v.PID
		}
		if v.InstanceID != nil {
			k.Instance = *v.InstanceID
			p.ids[k.Instance] = v.Address
		}
		for name, port := range v.Ports {
			k.Ports[name] = port.Host
		}
		p.of[v.Address] = k
		phases = append(phases, v.Address+" "+string(v.Phase))
	}
	p.phases = strings.Join(phases, ", ")
	for _, pattern := range []string{"volumes/*/log", "instances/*/upper/log"} {
		paths, err := filepath.Glob(filepath.Join(w.dir, "state", pattern))
		w.must(err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			w.must(err)
			p.files[path] = string(text)
		}
	}
	return p
}

// stage is a world in which a verb's work can begin.
type stage struct {
	*world
	v      *verb
	before *picture
	short  string
	b      *neighbour
	ground []string
}

// setUp applies what is there before and prepares the rest.
func (v *verb) setUp(t *testing.T) *stage {
	t.Helper()
	s := &stage{world: newWorld(t), v: v}
	if v.fresh {
		s.before = &picture{}
		s.files(v.after)
		return s
	}
	s.open("test")
	if v.before != "" {
		s.files(v.before)
		s.apply()
		s.written()
	}
	if v.before != "" && !v.alone {
		s.b = s.meet()
	}
	if v.early {
		s.before = s.picture()
	}
	if v.prepare != nil {
		v.prepare(s.world)
	}
	s.written()
	if !v.early {
		s.before = s.picture().renamed(v.renames)
	}
	s.short = s.world.short()
	s.close()
	ground, err := s.groundOf(s.before).look()
	s.must(err)
	s.ground = ground
	if v.lose != nil {
		v.lose(s.world)
	}
	s.files(v.after)
	return s
}

// renamed is the picture by new addresses.
func (p *picture) renamed(to map[string]string) *picture {
	for old, address := range to {
		p.of[address] = p.of[old]
		delete(p.of, old)
		p.phases = strings.ReplaceAll(p.phases, old+" ", address+" ")
		for id, name := range p.ids {
			if name == old {
				p.ids[id] = address
			}
		}
	}
	return p
}

func (s *stage) groundOf(p *picture) *ground {
	g := &ground{dir: s.dir, short: s.short, ids: p.ids, strangers: s.v.execs}
	if s.v.leaves || s.v.early {
		g.ids = maps.Clone(s.before.ids)
		maps.Copy(g.ids, p.ids)
	}
	if s.agent != nil {
		g.agent = s.agent.Process.Pid
	}
	return g
}

// written waits until each sandbox that runs the script has written down its start.
func (w *world) written() {
	w.Helper()
	res, err := w.List(context.Background())
	w.must(err)
	for _, v := range res.Sandboxes {
		if v.Volumes["volume.data"] == "/data" && v.Phase == plan.Running {
			path := filepath.Join(w.dir, "state", "instances", *v.InstanceID, "upper", "log")
			w.within(v.Address+" has written", func() bool { _, err := os.Stat(path); return err == nil })
		}
	}
}

// ends are the ways in which a verb may end: the lists of phases with what is on the
// host then.
type ends map[string][]string

// learn does the verb undisturbed: which points it passes, and how it ends.
func (v *verb) learn(t *testing.T) (points []point, ok ends) {
	s := v.setUp(t)
	log := filepath.Join(s.dir, "points")
	told, killed := s.do(v, "", log)
	if told.Error != "" || len(told.Failures) > 0 || killed != 0 {
		t.Fatalf("%s: %+v, %v", v.name, told, killed)
	}
	points, err := passed(log)
	s.must(err)
	ok = ends{}
	if v.either {
		ok[s.before.phases] = s.ground
	}
	after, ground := s.settle(nil)
	ok[after.phases] = ground
	s.check(after)
	return points, ok
}

// settle opens the state, looks, lets it go, and looks at the host until that is as it
// should be.
func (s *stage) settle(ok ends) (*picture, []string) {
	s.Helper()
	s.open("test")
	if list := s.todo(); len(list) > 0 {
		s.Errorf("there is still to do: %s", strings.Join(list, "; "))
	}
	s.written()
	p := s.picture()
	s.usable(p)
	s.short = s.world.short()
	s.close()
	g := s.groundOf(p)
	if ok == nil {
		var all []string
		s.within("nothing changes on the host any more", func() bool {
			last := all
			now, err := g.look()
			s.must(err)
			all = now
			return slices.Equal(last, now)
		})
		return p, all
	}
	want, known := ok[p.phases]
	if !known {
		s.Errorf("phases %q, want one of %q", p.phases, slices.Sorted(maps.Keys(ok)))
		return p, nil
	}
	got, err := g.settled(want)
	s.must(err)
	if d := differences(want, got); d != "" {
		s.Errorf("the host is not what it is without a crash:\n%s", d)
	}
	return p, got
}

// usable runs a command in sandbox.a if that runs.
func (s *stage) usable(p *picture) {
	s.Helper()
	if !slices.Contains(strings.Split(p.phases, ", "), "sandbox.a running") {
		return
	}
	if err := execute(context.Background(), s.Service, "true"); err != nil {
		s.Errorf("sandbox.a runs, and is of no use: %v", err)
	}
}

func differences(want, got []string) string {
	var b strings.Builder
	for _, side := range []struct {
		words      string
		have, lack []string
	}{{"missing", want, got}, {"too much", got, want}} {
		left := slices.Clone(side.lack)
		for _, line := range side.have {
			if i := slices.Index(left, line); i >= 0 {
				left = slices.Delete(left, i, i+1)
			} else {
				fmt.Fprintf(&b, "  %s: %s\n", side.words, line)
			}
		}
	}
	return b.String()
}

// check compares with what was before the work.
func (s *stage) check(now *picture) {
	s.Helper()
	if open := s.journal(); len(open) > 0 {
		s.Errorf("the journal still has %v", open)
	}
	for address, old := range s.before.of {
		is, there := now.of[address]
		if !there {
			if !s.v.ends {
				s.Errorf("%s has no record any more", address)
			}
			continue
		}
		if s.v.moves {
			old.Address = is.Address
		}
		isA := address == "sandbox.a"
		if isA && s.v.anew {
			if old.Address == is.Address || old.Ports["http"] == is.Ports["http"] {
				s.Errorf("%s was %+v, is %+v: it still has what was reserved for the old one", address, old, is)
			}
			old.Address, old.Ports = is.Address, is.Ports
		}
		if isA && !s.v.samePID || s.v.alone {
			old.PID, old.Instance = is.PID, is.Instance
		}
		if (isA || s.v.alone) && s.v.newLayer {
			old.Lease = is.Lease // a replace has a lease of its own
		}
		if !reflect.DeepEqual(old, is) {
			s.Errorf("%s was %+v, is %+v", address, old, is)
		}
	}
	s.checkFiles(now)
	if s.b != nil {
		if err := s.b.well(); err != nil {
			s.Error(err)
		}
	}
}

// checkFiles wants all that was written to volumes, and to the layers that go on.
func (s *stage) checkFiles(now *picture) {
	s.Helper()
	layer := func(p *picture, path string) (name string) {
		rest, is := strings.CutPrefix(path, filepath.Join(s.dir, "state", "instances")+"/")
		if is {
			id, _, _ := strings.Cut(rest, "/")
			return p.ids[id]
		}
		return ""
	}
	find := func(path string) (string, bool) {
		address := layer(s.before, path)
		if address == "" {
			text, ok := now.files[path]
			return text, ok
		}
		for other, text := range now.files {
			if layer(now, other) == address {
				return text, true
			}
		}
		return "", false
	}
	for path, old := range s.before.files {
		if s.v.ends || layer(s.before, path) != "" && s.v.newLayer {
			continue
		}
		if text, ok := find(path); !ok || !strings.HasPrefix(text, old) {
			s.Errorf("%s had %q, has %q", path, old, text)
		}
	}
}

// crash kills the process at a point; the next one, an apply or an agent, goes on.
func (v *verb) crash(t *testing.T, at point, ok ends, next string) (struck bool) {
	s := v.setUp(t)
	told, killed := s.do(v, at.arm("kill"), "")
	if killed != syscall.SIGKILL {
		if killed != 0 || told.Error != "" {
			t.Errorf("it should be killed %s, and ends with %v, %+v", at, killed, told)
		}
		return false
	}
	s.recover(next, ok)
	now, _ := s.settle(ok)
	s.check(now)
	return true
}

// recover is the next process that has to do with the state. One apply is enough,
// unless what was killed or lost backs off first.
func (s *stage) recover(next string, ok ends) {
	s.Helper()
	if s.v.bare { // what is not there cannot be opened: it is done again
		if _, err := os.Stat(filepath.Join(s.dir, "state", "state.db")); err != nil {
			_, err := perform(context.Background(), s.dir, s.v)
			s.must(err)
		}
	}
	if s.v.signals {
		pid := s.before.of["sandbox.a"].PID
		s.within("no signal is on its way", func() bool { return arrived(pid) })
	}
	switch {
	case next == "agent":
		s.serve()
	default:
		s.open(next)
	}
	s.apply()
	if next == "agent" {
		s.within("the agent has nothing to do", func() bool { return len(s.todo()) == 0 })
	}
	if s.v.backsOff {
		s.within("it is started again", func() bool {
			s.apply()
			_, there := ok[s.picture().phases]
			return there
		})
	}
	if next == "agent" { // it may be at what needs no change by a plan: an end to be cleared away
		p := s.picture()
		s.short = s.world.short()
		_, err := s.groundOf(p).settled(ok[p.phases])
		s.must(err)
	}
	s.close()
}

var nextOnes = []string{"apply", "agent"}

// run is one point of one verb.
type run struct {
	v  *verb
	at point
	ok ends
}

// learned does each verb once, and returns the runs that there could be.
func learned(t *testing.T, variant func(*verb) *verb) (runs []run) {
	var mu sync.Mutex
	t.Run("undisturbed", func(t *testing.T) {
		for _, name := range slices.Sorted(maps.Keys(verbs)) {
			v := variant(verbs[name])
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				points, ok := v.learn(t)
				mu.Lock()
				defer mu.Unlock()
				for _, at := range points {
					runs = append(runs, run{v, at, ok})
				}
			})
		}
	})
	slices.SortStableFunc(runs, func(x, y run) int { return strings.Compare(x.v.name, y.v.name) })
	return runs
}

// byVerb groups runs, in order.
func byVerb(runs []run) (groups [][]run) {
	for _, r := range runs {
		if n := len(groups); n > 0 && groups[n-1][0].v == r.v {
			groups[n-1] = append(groups[n-1], r)
		} else {
			groups = append(groups, []run{r})
		}
	}
	return groups
}

// unpassed are the failpoints of the source that no verb has to pass, and why.
var unpassed = map[string]string{
	"engine.rundir.keep":       "an agent makes the run dir again that was removed under it",
	"host.anteroom.make":       onlyV2,
	"host.anteroom.remove":     onlyV2,
	"host.cgroup.kill":         onlyV2,
	"host.cover.cloneowned":    "kernels that cannot map the ids of a tmpfs",
	"host.system.clone":        "hosts whose root has other file systems below it, such as /usr",
	"host.carry.return":        undoes,
	"host.outcome.discard":     undoes,
	"host.record.restore":      undoes,
	"network.bridge.undo":      undoes,
	"network.bridge.undorules": undoes,
	"network.port.undo":        undoes,
	"network.port.clear":       lingers,
	"network.port.delete":      lingers,
	"network.elements.part":    "rules vanish between a look at them and their removal",
	"network.sender.remove":    "no caller says what was attached",
}

const (
	onlyV2  = "cgroup v2 only"
	undoes  = "undoes a step that failed"
	lingers = "the kernel has kept an earlier network namespace for unusually long"
)

// demandAllPassed wants each failpoint of the source to be passed by a verb.
func demandAllPassed(t *testing.T, runs []run) {
	t.Helper()
	source, err := names.Names("../../..")
	if err != nil {
		t.Fatal(err)
	}
	did := map[*verb]bool{}
	for _, r := range runs {
		delete(source, r.at.name)
		did[r.v] = true
	}
	t.Logf("%d points of %d verbs", len(runs), len(did))
	if len(did) < len(verbs) {
		return // go test -run chose some
	}
	for _, name := range slices.Sorted(maps.Keys(source)) {
		if unpassed[name] == "" {
			t.Errorf("no verb passes the failpoint %s", name)
		}
	}
}

func TestKilledAtEachPoint(t *testing.T) {
	all := learned(t, func(v *verb) *verb { return v })
	if t.Failed() {
		return // what a crash leaves would be compared with something wrong
	}
	demandAllPassed(t, all)
	runs := chosen(t, all, func(r run) string { return r.at.name })
	var struck, missed atomic.Int64
	t.Run("killed", func(t *testing.T) {
		i := 0
		for _, group := range byVerb(runs) {
			t.Run(group[0].v.name, func(t *testing.T) {
				for _, r := range group {
					i++
					next := nextOnes[i%len(nextOnes)]
					t.Run(r.at.String()+" then "+next, func(t *testing.T) {
						t.Parallel()
						if r.v.crash(t, r.at, r.ok, next) {
							struck.Add(1)
						} else {
							missed.Add(1)
							t.Log("not reached")
						}
					})
				}
			})
		}
	})
	t.Logf("%d crash runs of %d that there are; in %d more the point was not reached", struck.Load(), len(all), missed.Load())
}

// seed decides which runs are chosen where not all are done.
func seed(t *testing.T) int64 {
	t.Helper()
	text := os.Getenv("PINFOLD_SEED")
	if text == "" {
		return 1
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("PINFOLD_SEED: %v", err)
	}
	return n
}

// chosen are all runs with PINFOLD_CRASH=full, else one of each kind that key tells, and
// of each verb one at an update of the state.
func chosen(t *testing.T, all []run, key func(run) string) (runs []run) {
	t.Helper()
	if os.Getenv("PINFOLD_CRASH") == "full" {
		return all
	}
	n := seed(t)
	t.Logf("chosen by PINFOLD_SEED=%d; PINFOLD_CRASH=full does all", n)
	random := rand.New(rand.NewSource(n))
	groups := map[string][]int{}
	for i, r := range all {
		k := key(r)
		if r.at.name == eachPass {
			k += " " + r.v.name
		}
		groups[k] = append(groups[k], i)
	}
	var picked []int
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		picked = append(picked, groups[key][random.Intn(len(groups[key]))])
	}
	slices.Sort(picked)
	for _, i := range picked {
		runs = append(runs, all[i])
	}
	return runs
}
