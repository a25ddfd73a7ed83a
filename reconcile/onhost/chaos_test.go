package onhost

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// TestChaos lets a seeded driver have its way with real sandboxes while an agent
// keeps them: it kills, unmounts, deletes, freezes, fills the disk, edits the files,
// runs verbs, and kills the agent. When it has gone quiet everything must be as
// declared within a bound, nothing left over, no sandbox alive twice on the way, no
// data lost, and the history must name what each repair was for.
//
// PINFOLD_CHAOS=SECONDS makes it longer, PINFOLD_SEED another one.
func TestChaos(t *testing.T) {
	length, seed := 20*time.Second, uint64(1)
	if n, err := strconv.Atoi(os.Getenv("PINFOLD_CHAOS")); err == nil {
		length = time.Duration(n) * time.Second
	}
	if n, err := strconv.ParseUint(os.Getenv("PINFOLD_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Run("applied", func(t *testing.T) { newChaos(t, seed, false).rage(length) })
	t.Run("followed", func(t *testing.T) { newChaos(t, seed+1<<32, true).rage(length) })
}

const (
	calmWithin = 10 * time.Second // what is promised
	calmBound  = 90 * time.Second // a loaded machine is no failure
	epoch      = 20 * time.Second // of chaos between two moments of quiet
	killsEach  = 3                // of one sandbox in an epoch: the wait before the next start doubles with each
)

// chaos is a world and what is done to it.
type chaos struct {
	*world
	seed    uint64
	rng     *rand.Rand
	client  reconcile.Service // of whatever agent runs
	short   string
	follow  bool
	files   declared
	views   []reconcile.SandboxView // as last seen
	deck    []string
	deeds   []deed
	kills   map[string]int
	done    map[string]int // deeds by kind
	why     map[string]map[string]int
	known   [sha256.Size]byte
	release func() // gives the disk's space back; nil: it is not full
	verbs   sync.WaitGroup
	apply   sync.Mutex
	clients chan struct{}
	dirty   atomic.Bool // the files are not known to be applied

	mu    sync.Mutex
	count map[string]int // how far each has counted, by volume
}

// deed is something done that the history has to explain.
type deed struct {
	kind     string
	at       time.Time
	address  string
	instance string
	named    func(reconcile.Event) bool
}

// declared is what the files say.
type declared struct {
	nets     [2]netip.Prefix
	internet bool
	extra    bool
	brief    int
	pids     map[string]int
	env      map[string]int
	held     string
	dated    string
}

// worker counts in its volume, answers on a port, and ends with 77 when another
// process of the same sandbox lives.
const worker = `
import fcntl, os, socketserver, threading, time
d = os.open("/d", os.O_RDONLY)
lock = os.open("lock", os.O_RDWR | os.O_CREAT, 0o644, dir_fd=d)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    os._exit(77)
def get(name):
    try:
        with open(os.open(name, os.O_RDONLY, dir_fd=d)) as f:
            return f.read()
    except OSError:
        return ""
def put(name, text):
    try:
        f = os.open(name + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644, dir_fd=d)
        try:
            whole = os.write(f, text.encode()) == len(text)
        finally:
            os.close(f)
        if whole:
            os.rename(name + ".new", name, src_dir_fd=d, dst_dir_fd=d)
    except OSError:
        pass
def serve():
    class H(socketserver.StreamRequestHandler):
        def handle(self):
            for line in self.rfile:
                self.wfile.write(line.upper())
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    socketserver.ThreadingTCPServer(("0.0.0.0", 7000), H).serve_forever()
threading.Thread(target=serve, daemon=True).start()
put("name", os.environ["NAME"])
n = int(get("n") or 0)
begun = time.time()
while True:
    n += 1
    put("n", str(n))
    if get("churn") and time.time() - begun > 2:
        os._exit(1)
    time.sleep(0.1)
`

func (f *declared) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "network \"n\" {\n cidr = %q\n internet = %v\n}\nnetwork \"m\" { cidr = %q }\nvolume \"shared\" {}\n", f.nets[0], f.internet, f.nets[1])
	box := func(name, extra string) {
		fmt.Fprintf(&b, "sandbox %q {\n image = image.base\n command = [\"python3\", \"-c\", %q]\n env = { NAME = %q, X = \"%d\" }\n"+
			" stop_grace = \"2s\"\n resources { pids = %d }\n volume \"d\" { path = \"/d\" }\n%s}\n", name, worker, name, f.env[name], 40+f.pids[name], extra)
	}
	const port = " port \"p\" { container = 7000 }\n"
	const shared = " mount {\n volume = volume.shared\n path = \"/shared\"\n}\n"
	on := func(name string) string { return " network { name = network." + name + " }\n" }
	idle := func(action string) string {
		return fmt.Sprintf(" lifetime {\n idle_timeout = \"2s\"\n idle_action = %q\n resume_on_access = true\n}\n", action)
	}
	box("plain", on("n")+port+shared)
	box("lazy", on("m")+port+idle("pause"))
	box("off", on("m")+port+idle("suspend"))
	box("alone", port+shared)
	box("bare", on("n")+" security { user_namespace = false }\n")
	box("again", on("m")+" restart {\n mode = \"always\"\n backoff_max = \"1s\"\n}\n")
	box("held", on("n")+fmt.Sprintf(" operating_mode = %q\n", f.held))
	box("dated", fmt.Sprintf(" shutdown_time = %q\n", f.dated))
	box(fmt.Sprintf("brief%d", f.brief), " lifetime { ttl = \"5s\" }\n shutdown_policy = \"delete\"\n")
	if f.extra {
		box("extra", on("n"))
	}
	return b.String()
}

// lasting are the sandboxes that are always declared.
var lasting = []string{"plain", "lazy", "off", "alone", "bare", "again", "held", "dated"}

func newChaos(t *testing.T, seed uint64, follow bool) *chaos {
	c := &chaos{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 4)), follow: follow, kills: map[string]int{},
		done: map[string]int{}, why: map[string]map[string]int{}, clients: make(chan struct{}, 4), count: map[string]int{},
	}
	c.world = newWorld(t, logged, onSmallDisk(256), func(w *world) {
		if follow {
			w.env = append(w.env, follows+"=1")
			c.world = w
			c.begin()
		}
	})
	c.client = c.Service
	if !follow {
		c.begin()
		c.must(c.applyNow(t.Context()))
	}
	c.short = c.world.short()
	for _, name := range lasting {
		if !within(time.Minute, func() bool { return c.volume(name) != "" }) {
			c.Fatalf("%s does not run", name)
		}
	}
	known := make([]byte, 100_000)
	for i := range known {
		known[i] = byte(c.rng.Uint32())
	}
	c.known = sha256.Sum256(known)
	for _, name := range lasting {
		c.must(os.WriteFile(filepath.Join(c.volume(name), "known"), known, 0o644))
	}
	c.must(os.WriteFile(filepath.Join(c.volume("again"), "churn"), []byte("1"), 0o644))
	for _, name := range []string{"plain", "bare", "alone"} {
		c.says(name, "echo kept > /kept; cat /kept", "kept\n")
	}
	return c
}

// begin writes the first files.
func (c *chaos) begin() {
	pool, err := os.ReadFile(filepath.Join(c.dir, "pool"))
	c.must(err)
	p := netip.MustParsePrefix(string(pool))
	second := p.Addr().As4()
	second[3] = 64
	c.files = declared{
		nets: [2]netip.Prefix{netip.PrefixFrom(p.Addr(), 26), netip.PrefixFrom(netip.AddrFrom4(second), 26)},
		pids: map[string]int{}, env: map[string]int{}, held: "running", dated: "never", extra: true,
	}
	c.write()
}

// write puts the files down whole.
func (c *chaos) write() {
	dir := filepath.Join(c.dir, "config")
	c.must(os.WriteFile(filepath.Join(dir, "new"), []byte("image \"base\" { source = \"host\" }\n"+c.files.text()), 0o644))
	c.must(os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "main.hcl")))
}

// applyNow applies the files, as a user would.
func (c *chaos) applyNow(ctx context.Context) error {
	c.apply.Lock()
	defer c.apply.Unlock()
	src, diags := config.Load(filepath.Join(c.dir, "config"), config.Inputs{})
	if diags.HasErrors() {
		return fmt.Errorf("%v", diags)
	}
	res, err := c.client.Apply(ctx, reconcile.ApplyRequest{PlanRequest: reconcile.PlanRequest{Source: src}, AutoApprove: true}, nil, nil)
	if words := failures(res, err); len(words) > 0 {
		err = errors.New(strings.Join(words, "; "))
	}
	c.dirty.Store(err != nil)
	return err
}

// volume is the directory of a sandbox's volume; "" when it has not named itself.
func (c *chaos) volume(name string) string {
	files, _ := filepath.Glob(filepath.Join(c.dir, "state", "volumes", "*", "name"))
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && string(b) == name {
			return filepath.Dir(f)
		}
	}
	return ""
}

// rage does its deeds, with a moment of quiet after each epoch, for so long.
func (c *chaos) rage(length time.Duration) {
	ctx, stop := context.WithCancel(c.ctx)
	var watch sync.WaitGroup
	watch.Go(func() { c.watchCounts(ctx) })
	defer watch.Wait()
	defer stop()
	for end := time.Now().Add(length); time.Now().Before(end) && !c.Failed(); {
		for until := time.Now().Add(min(epoch, time.Until(end))); time.Now().Before(until) && !c.Failed(); {
			c.step()
			time.Sleep(time.Duration(50+c.rng.IntN(400)) * time.Millisecond) // the pace of the disturber: nothing is waited for
		}
		c.quiet()
	}
	c.Logf("seed %d: %v", c.seed&(1<<32-1), c.done)
	c.Logf("how the history explains them: %v", c.why)
}

// watchCounts sees that no count goes backwards, which data that is lost would do.
func (c *chaos) watchCounts(ctx context.Context) {
	for ctx.Err() == nil {
		c.counts()
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (c *chaos) counts() {
	files, _ := filepath.Glob(filepath.Join(c.dir, "state", "volumes", "*", "n"))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it goes with its sandbox
		}
		n, err := strconv.Atoi(string(b))
		if err != nil || n < c.count[f] {
			c.Errorf("%s holds %q, it held %d before", f, b, c.count[f])
		}
		c.count[f] = max(c.count[f], n)
	}
}

// cards are the kinds of deeds, each as often as it is done in a round.
var cards = map[string]int{
	"kill pid 1": 2, "kill the command": 2, "unmount the root": 1, "delete a link": 2, "delete a bridge": 1, "unname a netns": 2,
	"drop the tables": 1, "remove a cgroup": 2, "lift a limit": 1, "freeze or thaw": 3, "fill the disk": 1, "edit the files": 3,
	"kill the agent": 1, "clear the run dir": 1, "verb": 8, "connect": 4,
}

// step does one thing.
func (c *chaos) step() {
	if len(c.deck) == 0 {
		for _, kind := range slices.Sorted(func(yield func(string) bool) {
			for kind := range cards {
				if !yield(kind) {
					return
				}
			}
		}) {
			c.deck = append(c.deck, slices.Repeat([]string{kind}, cards[kind])...)
		}
		c.rng.Shuffle(len(c.deck), func(i, j int) { c.deck[i], c.deck[j] = c.deck[j], c.deck[i] })
	}
	kind := c.deck[0]
	c.deck = c.deck[1:]
	c.try(kind)
}

// try does a deed of this kind, if there is something to do it to.
func (c *chaos) try(kind string) {
	ctx, cancel := context.WithTimeout(c.ctx, 20*time.Second)
	res, err := c.client.List(ctx)
	cancel()
	if err == nil {
		c.views = res.Sandboxes
	}
	switch err := c.do(kind); {
	case errors.Is(err, errAway):
	case err != nil:
		c.Errorf("%s: %v", kind, err)
	default:
		c.done[kind]++
	}
}

// pick is one of the sandboxes for which ok holds; nil when there is none.
func (c *chaos) pick(ok func(v *reconcile.SandboxView) bool) *reconcile.SandboxView {
	var fit []*reconcile.SandboxView
	for i := range c.views {
		if ok(&c.views[i]) {
			fit = append(fit, &c.views[i])
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return fit[c.rng.IntN(len(fit))]
}

func alive(v *reconcile.SandboxView) bool  { return v.PID != nil }
func onNet(v *reconcile.SandboxView) bool  { return v.PID != nil && v.AddressV4 != nil }
func frozen(v *reconcile.SandboxView) bool { return v.Phase == plan.Paused }

// owe notes what the history has to explain, before it is done.
func (c *chaos) owe(kind, address, instance string, named func(reconcile.Event) bool) {
	c.deeds = append(c.deeds, deed{kind: kind, at: time.Now(), address: address, instance: instance, named: named})
}

// unowe takes the last one back: there was nothing to touch.
func (c *chaos) unowe(err error) error {
	if err != nil {
		c.deeds = c.deeds[:len(c.deeds)-1]
	}
	return err
}

func missing(part string) func(reconcile.Event) bool {
	return func(e reconcile.Event) bool {
		return strings.Contains(e.Reason, part) && (strings.Contains(e.Reason, "missing") || strings.Contains(e.Reason, "gone"))
	}
}

func typed(types ...string) func(reconcile.Event) bool {
	return func(e reconcile.Event) bool { return slices.Contains(types, e.Type) }
}

func (c *chaos) do(kind string) error {
	run := filepath.Join(c.dir, "run")
	on := func(ok func(*reconcile.SandboxView) bool, named func(reconcile.Event) bool, do func(id string, v *reconcile.SandboxView) error) error {
		v := c.pick(ok)
		if v == nil {
			return errAway
		}
		c.owe(kind, v.Address, *v.InstanceID, named)
		return c.unowe(do(*v.InstanceID, v))
	}
	mayKill := func(v *reconcile.SandboxView) bool { return alive(v) && c.kills[v.Address] < killsEach }
	switch kind {
	case "kill pid 1":
		return on(mayKill, typed("lost"), func(id string, v *reconcile.SandboxView) error {
			c.kills[v.Address]++
			return killFirst(c.short, id, *v.PID)
		})
	case "kill the command":
		return on(func(v *reconcile.SandboxView) bool { return mayKill(v) && !frozen(v) }, typed("exited"), func(id string, v *reconcile.SandboxView) error {
			c.kills[v.Address]++
			return killMain(c.short, id, *v.PID)
		})
	case "unmount the root":
		return on(func(v *reconcile.SandboxView) bool { return alive(v) && v.Address == "sandbox.bare" }, missing("rootfs"), func(id string, v *reconcile.SandboxView) error {
			return unmountInside(c.short, id, *v.PID, "/d", "/")
		})
	case "delete a link":
		return on(onNet, missing("link"), func(id string, _ *reconcile.SandboxView) error { return deleteLink(c.short, "instance "+id) })
	case "unname a netns":
		return on(alive, missing("netns"), func(id string, _ *reconcile.SandboxView) error { return unnameNetns(run, id) })
	case "remove a cgroup":
		return on(func(v *reconcile.SandboxView) bool { return alive(v) && !frozen(v) }, missing("cgroup"), func(id string, _ *reconcile.SandboxView) error {
			return removeGroup(c.short, id, []string{"memory", "pids", "cpu", "devices", "freezer"}[c.rng.IntN(5)])
		})
	case "lift a limit":
		return on(func(v *reconcile.SandboxView) bool { return alive(v) && v.Phase != plan.Created }, missing("limits"), func(id string, _ *reconcile.SandboxView) error {
			return loosen(c.short, id)
		})
	case "freeze or thaw":
		return on(func(v *reconcile.SandboxView) bool { return alive(v) && v.Phase != plan.Created }, typed("pause", "paused", "resume", "running"), func(id string, v *reconcile.SandboxView) error {
			return freeze(c.short, id, !frozen(v))
		})
	case "delete a bridge":
		address := []string{"network.n", "network.m"}[c.rng.IntN(2)]
		c.owe(kind, address, "", missing("bridge"))
		id := ""
		for _, e := range c.history(address) {
			id = e.Instance
		}
		return c.unowe(deleteLink(c.short, "network "+id))
	case "drop the tables":
		// Whoever needs the tables first makes them, also a start; a bridge that is made
		// again is given its rules. All that they were of name them.
		c.owe(kind, "", "", func(e reconcile.Event) bool { return missing("rules")(e) || missing("bridge")(e) })
		return c.unowe(dropTables(c.short))
	case "fill the disk":
		return c.toggleDisk()
	case "edit the files":
		c.edit()
		return nil
	case "kill the agent":
		c.kill()
		c.free() // on a full disk an agent does not start, and says why
		if c.rng.IntN(2) == 0 {
			time.Sleep(time.Duration(c.rng.IntN(1500)) * time.Millisecond)
		}
		c.serve()
		return nil
	case "clear the run dir":
		for _, v := range c.views {
			if alive(&v) {
				c.owe(kind, v.Address, *v.InstanceID, func(e reconcile.Event) bool {
					return missing("rundir")(e) || missing("netns")(e)
				})
			}
		}
		return clearRunDir(run)
	case "verb":
		return c.verb()
	case "connect":
		return c.connect()
	}
	return fmt.Errorf("no such deed")
}

// history is all events of an address; none when nobody answers.
func (c *chaos) history(address string) []reconcile.Event {
	ctx, cancel := context.WithTimeout(c.ctx, 20*time.Second)
	defer cancel()
	res, err := c.client.Events(ctx, reconcile.EventsRequest{Address: address})
	if err != nil {
		return nil
	}
	return res.Events
}

// toggleDisk fills the disk, or gives it back.
func (c *chaos) toggleDisk() error {
	if c.release != nil {
		c.free()
		return nil
	}
	c.release = fill(c.world, filepath.Join(c.dir, "state"))
	return nil
}

func (c *chaos) free() {
	if c.release != nil {
		c.release()
		c.release = nil
	}
}

// edit changes what the files declare.
func (c *chaos) edit() {
	name := lasting[c.rng.IntN(len(lasting))]
	switch c.rng.IntN(7) {
	case 0:
		c.files.internet = !c.files.internet
	case 1:
		c.files.extra = !c.files.extra
	case 2:
		c.files.brief++
	case 3:
		c.files.pids[name]++
	case 4:
		c.files.env[name]++
	case 5:
		c.files.held = []string{"running", "paused", "suspended"}[c.rng.IntN(3)]
	default:
		c.files.dated = "never"
		if c.rng.IntN(3) > 0 {
			_, c.files.dated = soon(time.Duration(1+c.rng.IntN(10)) * time.Second)
		}
	}
	c.write()
	if !c.follow {
		c.dirty.Store(true)
		c.aside("apply", c.applyNow)
	}
}

// aside does what a client asks while other things happen.
func (c *chaos) aside(what string, do func(ctx context.Context) error) {
	select {
	case c.clients <- struct{}{}:
	default:
		return // enough of them wait for answers
	}
	c.verbs.Go(func() {
		defer func() { <-c.clients }()
		ctx, cancel := context.WithTimeout(c.ctx, 30*time.Second)
		defer cancel()
		err := do(ctx)
		var e *reconcile.Error
		if errors.As(err, &e) && strings.TrimSpace(e.Message) == "" {
			c.Errorf("%s fails without words: %#v", what, e)
		}
	})
}

func (c *chaos) verb() error {
	v := c.pick(func(*reconcile.SandboxView) bool { return true })
	if v == nil {
		return errAway
	}
	a := v.Address
	hour := config.Duration(time.Hour)
	switch n := c.rng.IntN(10); n {
	case 0, 1, 2, 3, 4, 5, 6:
		verb := []string{"start", "stop", "pause", "resume", "release", "start", "release"}[n]
		c.aside(verb, func(ctx context.Context) error {
			_, err := c.client.Act(ctx, reconcile.ActRequest{Verb: verb, Address: a})
			return err
		})
	case 7:
		c.aside("renew", func(ctx context.Context) error {
			_, err := c.client.Renew(ctx, reconcile.RenewRequest{Address: a, In: &hour})
			return err
		})
	case 8:
		c.aside("touch", func(ctx context.Context) error { _, err := c.client.Touch(ctx, a); return err })
	default:
		c.aside("exec", func(ctx context.Context) error { return c.exec(ctx, a, "true") })
	}
	return nil
}

// exec runs a script and throws its output away.
func (c *chaos) exec(ctx context.Context, address, script string) error {
	s, err := c.client.Exec(ctx, reconcile.ExecRequest{Address: address, Args: []string{"sh", "-c", script}})
	if err != nil {
		return err
	}
	code, err := s.Wait()
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	return err
}

// connect uses a port, and does not mind that nobody answers.
func (c *chaos) connect() error {
	v := c.pick(func(v *reconcile.SandboxView) bool { return v.Ports["p"].Host != 0 })
	if v == nil {
		return errAway
	}
	port := v.Ports["p"].Host
	c.aside("connect", func(context.Context) error { return hello(port, 5*time.Second) })
	return nil
}

// hello asks the worker behind a host port.
func hello(port int, bound time.Duration) error {
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), bound)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(bound))
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "HELLO\n" {
		return fmt.Errorf("port %d answers %q, %v", port, got, err)
	}
	return nil
}

// quiet ends the deeds of an epoch and demands all that is promised.
func (c *chaos) quiet() {
	c.verbs.Wait()
	c.free()
	if churn := filepath.Join(c.volume("again"), "churn"); true {
		if err := os.Remove(churn); err != nil && !errors.Is(err, os.ErrNotExist) {
			c.Fatal(err)
		}
	}
	if c.dirty.Load() {
		// What failed while the disk was full, or with the agent, a user asks for again;
		// and once more where the agent had mended what the plan was about.
		var err error
		if !within(calmBound, func() bool { err = c.applyNow(c.ctx); return err == nil }) {
			c.Errorf("apply after the chaos: %v", err)
		}
	}
	// The last deeds are such that nobody but the agent's own eyes tells of them.
	for _, kind := range []string{"delete a bridge", "drop the tables", "delete a link", "unname a netns", "lift a limit", "remove a cgroup", "freeze or thaw", "unmount the root"} {
		c.try(kind)
	}
	last := time.Now()
	var err, before error // what is not as declared, and what was not the last time
	if !within(calmBound, func() bool {
		if err = c.calm(); err != nil {
			before = err
		}
		return err == nil
	}) {
		c.Errorf("not as declared %s after the last disturbance: %v", time.Since(last).Round(time.Second), err)
		for _, v := range c.views {
			c.Logf("%s: %s", v.Address, digestOf(c.history(v.Address)))
		}
		return
	}
	c.Logf("as declared %s after the last disturbance (promised: %s); until then: %v", time.Since(last).Round(10*time.Millisecond), calmWithin, before)
	c.explain()
	c.services()
	c.data()
	c.again()
}

// calm tells what is not as it should be.
func (c *chaos) calm() error {
	ctx, cancel := context.WithTimeout(c.ctx, 30*time.Second)
	defer cancel()
	res, err := c.client.List(ctx)
	if err != nil {
		return err
	}
	c.views = res.Sandboxes
	p, err := c.client.Plan(ctx, reconcile.PlanRequest{Source: c.source()})
	if err != nil {
		return err
	}
	if err := c.settled(c.views, p.Plan); err != nil {
		return err
	}
	return c.tally(c.short, c.views, 2)
}

// services uses all that is not held back by an operator.
func (c *chaos) services() {
	for _, v := range c.views {
		if v.Hold != nil && v.Hold.By == "operator" || v.DeclaredMode != "running" || v.Phase == plan.Stopped && v.Mode == "running" {
			continue
		}
		if port := v.Ports["p"].Host; port != 0 {
			var err error
			if !within(20*time.Second, func() bool { err = hello(port, 40*time.Second); return err == nil }) {
				c.Errorf("%s: %v", v.Address, err)
			}
		}
	}
}

// data is as it was written.
func (c *chaos) data() {
	c.counts()
	for _, name := range lasting {
		dir := c.volume(name)
		if dir == "" {
			c.Errorf("%s has lost its volume", name)
			continue
		}
		if b, err := os.ReadFile(filepath.Join(dir, "known")); err != nil || sha256.Sum256(b) != c.known {
			c.Errorf("%s: what was written to its volume is not there: %d bytes, %v", name, len(b), err)
		}
	}
	for _, name := range []string{"plain", "bare", "alone"} {
		if v := c.view(name); v.Phase == plan.Running {
			c.says(name, "cat /kept", "kept\n")
		}
	}
}

// explain demands for each deed that the history names it, or tells that the
// instance ended for another reason before anybody could see it. What was mended
// while nothing could be written is told by the agent's log.
func (c *chaos) explain() {
	endings := typed("exited", "lost", "stop", "suspend", "expired", "destroyed", "restart", "recreate", "replace", "rebound", "failed")
	histories := map[string][]reconcile.Event{}
	log := c.said()
	for i, d := range c.deeds {
		if histories[d.address] == nil {
			histories[d.address] = c.history(d.address)
		}
		how := "unexplained"
		for _, e := range histories[d.address] {
			if e.At.Before(d.at) {
				continue
			}
			// A repair that met the next thing missing may have mended the first.
			// One that was killed on its way up is told of by its start.
			start := e.Instance == d.instance && strings.Contains(e.Message, "ended before its command ran")
			if d.named(e) || e.Type == "error" && (start || strings.Contains(e.Message, "cannot repair")) {
				how = "named"
				break
			}
			if endings(e) && e.Instance == d.instance {
				how = "overtaken"
			}
		}
		switch {
		case how != "unexplained":
		case d.kind == "freeze or thaw" && c.doneAgain(d, c.deeds[:i], c.deeds[i+1:]):
			how = "undone by the next"
		case strings.Contains(log, d.address+" happened but cannot be recorded"):
			how = "logged only"
		default:
			c.Errorf("no event explains %q of %s %s at %s:\n%s", d.kind, d.address, d.instance, d.at.UTC().Format("15:04:05.000"), digestOf(histories[d.address]))
		}
		if c.why[d.kind] == nil {
			c.why[d.kind] = map[string]int{}
		}
		c.why[d.kind][how]++
	}
	for address, events := range histories {
		for _, e := range events {
			if e.Type == "exited" && strings.Contains(e.Message, "exit code 77") {
				c.Errorf("%s lived twice: %+v", address, e)
			}
		}
	}
	c.deeds = nil
}

// doneAgain tells whether a freeze was followed by a thaw, or the other way round, of
// the same instance: together they are nothing to repair.
func (c *chaos) doneAgain(d deed, others ...[]deed) bool {
	for _, list := range others {
		for _, o := range list {
			if o.kind == d.kind && o.instance == d.instance && o.at.Sub(d.at).Abs() < calmBound {
				return true
			}
		}
	}
	return false
}

// again makes ready for the next epoch: whoever was killed in this one starts a new
// series, so that the wait before its next start is a short one.
func (c *chaos) again() {
	for _, v := range c.views {
		address := v.Address
		if c.kills[address] == 0 || v.Phase != plan.Running {
			continue
		}
		for _, verb := range []string{"stop", "start"} {
			if _, err := c.client.Act(c.ctx, reconcile.ActRequest{Verb: verb, Address: address}); err != nil {
				c.Logf("%s %s: %v", verb, address, err)
			}
		}
		c.kills[address] = 0
	}
	if dir := c.volume("again"); dir != "" {
		c.must(os.WriteFile(filepath.Join(dir, "churn"), []byte("1"), 0o644))
	}
}

// digestOf is a history for people.
func digestOf(events []reconcile.Event) string {
	var b strings.Builder
	for _, e := range events[max(0, len(events)-25):] {
		fmt.Fprintf(&b, "  %s %s %s (%s) %s by %s\n", e.At.UTC().Format("15:04:05.000"), e.Instance, e.Type, e.Reason, e.Message, e.By)
	}
	return b.String()
}
