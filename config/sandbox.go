package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// defaultSandbox is what holds where neither block nor policy says otherwise.
func defaultSandbox() Sandbox {
	return Sandbox{
		OperatingMode:  "running",
		ShutdownPolicy: "retain",
		StopSignal:     "SIGTERM",
		StopGrace:      Duration(10 * time.Second),
		Lifetime: Lifetime{
			OnLost: "recreate", StartTimeout: Duration(5 * time.Minute), Clock: "always",
			IdleAction: "pause", RenewMinInterval: Duration(time.Minute),
		},
		Restart:  Restart{Mode: never, Window: Duration(10 * time.Minute), BackoffMin: Duration(time.Second), BackoffMax: Duration(5 * time.Minute)},
		Security: Security{UserNamespace: true},
	}
}

var (
	asMode3          = asOneOf([]string{"running", "paused", "suspended"})
	asShutdownPolicy = asOneOf([]string{"retain", "delete", "pause"})
	asOnLost         = asOneOf([]string{"recreate", "recreate-fresh", "retain", "delete"})
	asRestartMode    = asOneOf([]string{never, "on-failure", "always"})
	asClock          = asOneOf([]string{"always", "running"})
	asIdleAction     = asOneOf([]string{"pause", "suspend"})
	asRenewal        = asPositive("; leave it out where access is to renew nothing")
	asWindow         = asPositive("")
	asProtocol       = asOneOf([]string{"tcp", "udp"})
	asOnDestroy      = asOneOf([]string{"delete"}, "retain")
	asHostname       = asText(checkHostname)
	asInside         = asText(inside)
	asWorkingDir     = asText(absolute)
	asGrace          = asPositive("; for an end without grace use stop_signal = \"SIGKILL\"")
	asStartTimeout   = asPositive("")
	asContent        = asText(func(string) error { return nil })
	asContainerPort  = asPort(1)
	asHostPort       = asPort(0)
)

// sandboxes decodes all instances of a sandbox block.
func (ev *evaluation) sandboxes(n *node) {
	policies := n.attr("policies")
	split := len(n.instances) > 1 && !n.varies && (policies == nil || n.exprs[policies] == nil || !n.exprs[policies].perInstance)
	var base Sandbox
	var first *decoder
	if split {
		first = ev.sharedDecoder(n)
		base = first.sharedSandbox()
		n.needs = first.dependsOn()
	}
	if all := ev.out.Sandboxes; cap(all)-len(all) < len(n.instances) {
		// They are large: blocks of a module used many times add to them again and again.
		ev.out.Sandboxes = slices.Grow(all, max(len(n.instances), len(all)))
	}
	elements := make([]cty.Value, 0, len(n.instances))
	for i := range n.instances {
		in := &n.instances[i]
		ev.known[in.address] = "sandbox"
		d := ev.decoder(n, in)
		spec := base
		if split {
			d.phase = own
			d.unknown, d.lifecycle, d.badProbe = slices.Clone(first.unknown), first.lifecycle, first.badProbe
			d.sensitive, d.concealed = slices.Clone(first.sensitive), slices.Clip(first.concealed)
			d.inherited = first.places
		} else {
			spec = defaultSandbox()
		}
		d.sandbox(&spec)
		if !split || d.n.pathsDiffer() {
			d.checkPlaces(&spec)
		}
		d.guard(&spec)
		d.comesFirst(&spec)
		d.contradictions(&spec)
		d.note(&spec)
		ev.out.Sandboxes = append(ev.out.Sandboxes, finish(d, spec))
		if n.used || n.judged || ev.console {
			self := d.sandboxExports(&spec, blockOf(d.body, "network") != nil)
			elements = append(elements, self)
			d.conditions(self)
		}
	}
	if n.used || n.judged || ev.console {
		ev.setValue(n, elements)
	}
}

// sharedSandbox decodes what all instances of the block have in common.
func (d *decoder) sharedSandbox() Sandbox {
	spec := defaultSandbox()
	d.sandbox(&spec)
	d.checkPlaces(&spec)
	return spec
}

// sandbox decodes what is the decoder's phase of a sandbox block, and of the
// policies under it, into spec.
func (d *decoder) sandbox(spec *Sandbox) {
	body, l := d.body, d.own()
	if d.phase != own {
		for _, p := range d.ev.host.defaults {
			d.rules(p, p.body, spec)
		}
		for _, p := range d.policies() {
			d.rules(p, p.body, spec)
		}
	}
	d.rules(l, body, spec)
	if address, ok := d.refer(l, body, "image", "image", "image", true); ok {
		spec.Image = address
	}
	d.command(l, body, spec)
	setPairs(d, l, body, "env", "env", checkEnv, &spec.Env)
	setPairs(d, l, body, "labels", "labels", checkLabel, &spec.Labels)
	set(d, l, body, "working_dir", "working_dir", asWorkingDir, &spec.WorkingDir)
	set(d, l, body, "user", "user", asUser, &spec.User)
	set(d, l, body, "hostname", "hostname", asHostname, &spec.Hostname)
	set(d, l, body, "operating_mode", "operating_mode", asMode3, &spec.OperatingMode)
	if b := blockOf(body, "network"); b != nil {
		if address, ok := d.refer(l, b.Body, "name", "network.name", "network", true); ok {
			spec.Network = &Attachment{Name: address}
		}
	}
	d.parts(l, body, spec)
	if b := blockOf(body, "lifecycle"); b != nil && !d.skipsBlock(b) {
		d.readLifecycle()
	}
}

// note records what must be unique among all sandboxes.
func (d *decoder) note(spec *Sandbox) {
	if spec.Network != nil {
		a := Address{Module: d.n.home.address, Type: "sandbox", Name: d.n.name, Key: d.in.key}
		d.ev.hosts = append(d.ev.hosts, hostUse{hostname(d.n.home.way, a), spec.Network.Name, d.in.address, d.n.rng})
	}
	if len(spec.Ports) == 0 {
		return
	}
	for _, b := range d.body.Blocks {
		if b.Type != "port" || len(b.Labels) != 1 {
			continue
		}
		if p := spec.Ports[b.Labels[0]]; p.Host != 0 && p.Address != "" && p.Protocol != "" {
			d.ev.ports = append(d.ev.ports, portUse{p, d.in.address, b.Labels[0], exprRange(b, "host")})
		}
	}
}

// policies are the layers that the sandbox's policies argument names, in order.
func (d *decoder) policies() []layer {
	attr := d.n.attr("policies")
	if attr == nil || d.skips(d.own(), attr) {
		return nil
	}
	v, ok := d.ev.value(d.n, attr, d.in.each, d.in.address)
	if !ok || v.IsNull() {
		return nil
	}
	if v, ok = d.ev.open(d.in.address, attr, v); !ok {
		return nil
	}
	switch ty := v.Type(); {
	case !v.IsKnown() && d.n.tainted:
		return nil
	case !v.IsKnown():
		d.wrong(attr, "Which policies hold must be known before anything is made; this value is known only after apply.")
		return nil
	case !ty.IsTupleType() && !ty.IsListType():
		d.wrong(attr, "Write a list of references, such as policies = [policy.NAME].")
		return nil
	}
	var out []layer
	for it := v.ElementIterator(); it.Next(); {
		_, element := it.Element()
		address, ok := d.target(attr.Name, attr.Expr.Range(), element, "policy")
		if !ok {
			continue
		}
		if p := d.ev.policies[address]; !p.broken {
			out = append(out, d.ev.policyLayer(p))
		}
	}
	return out
}

// rules decodes what both policies and sandboxes may say.
func (d *decoder) rules(l layer, body *hclsyntax.Body, spec *Sandbox) {
	set(d, l, body, "shutdown_time", "shutdown_time", asInstant, &spec.ShutdownTime)
	set(d, l, body, "shutdown_policy", "shutdown_policy", asShutdownPolicy, &spec.ShutdownPolicy)
	set(d, l, body, "stop_signal", "stop_signal", asSignal, &spec.StopSignal)
	set(d, l, body, "stop_grace", "stop_grace", asGrace, &spec.StopGrace)
	for _, b := range body.Blocks {
		if d.skipsBlock(b) {
			continue
		}
		switch b.Type {
		case "lifetime":
			set(d, l, b.Body, "ttl", "lifetime.ttl", asTTL, &spec.Lifetime.TTL)
			set(d, l, b.Body, "on_lost", "lifetime.on_lost", asOnLost, &spec.Lifetime.OnLost)
			set(d, l, b.Body, "start_timeout", "lifetime.start_timeout", asStartTimeout, &spec.Lifetime.StartTimeout)
			set(d, l, b.Body, "clock", "lifetime.clock", asClock, &spec.Lifetime.Clock)
			set(d, l, b.Body, "idle_timeout", "lifetime.idle_timeout", asIdle, &spec.Lifetime.IdleTimeout)
			set(d, l, b.Body, "idle_action", "lifetime.idle_action", asIdleAction, &spec.Lifetime.IdleAction)
			set(d, l, b.Body, "resume_on_access", "lifetime.resume_on_access", asBool, &spec.Lifetime.ResumeOnAccess)
			set(d, l, b.Body, "renew_on_access", "lifetime.renew_on_access", asRenewal, &spec.Lifetime.RenewOnAccess)
			set(d, l, b.Body, "renew_min_interval", "lifetime.renew_min_interval", asWindow, &spec.Lifetime.RenewMinInterval)
		case "resources":
			set(d, l, b.Body, "cpu", "resources.cpu", asCPU, &spec.Resources.CPU)
			set(d, l, b.Body, "memory", "resources.memory", asMemory, &spec.Resources.Memory)
			set(d, l, b.Body, "pids", "resources.pids", asPIDs, &spec.Resources.PIDs)
		case "security":
			set(d, l, b.Body, "user_namespace", "security.user_namespace", asBool, &spec.Security.UserNamespace)
			set(d, l, b.Body, "read_only_root", "security.read_only_root", asBool, &spec.Security.ReadOnlyRoot)
			d.capabilities(l, b.Body, spec)
		case "restart":
			set(d, l, b.Body, "mode", "restart.mode", asRestartMode, &spec.Restart.Mode)
			set(d, l, b.Body, "max_attempts", "restart.max_attempts", asInt(0, 1_000_000), &spec.Restart.MaxAttempts)
			set(d, l, b.Body, "window", "restart.window", asWindow, &spec.Restart.Window)
			set(d, l, b.Body, "backoff_min", "restart.backoff_min", asWindow, &spec.Restart.BackoffMin)
			set(d, l, b.Body, "backoff_max", "restart.backoff_max", asWindow, &spec.Restart.BackoffMax)
		case "health":
			d.health(l, b, spec)
		}
	}
}

func (d *decoder) capabilities(l layer, body *hclsyntax.Body, spec *Sandbox) {
	const name, path = "drop_capabilities", "security.drop_capabilities"
	var given []string
	switch setTexts(d, l, body, name, path, &given) {
	case absent:
		return
	case unknown:
		spec.Security.DropCapabilities = nil
		return
	}
	names := make([]string, 0, len(given))
	for i, text := range given {
		if d.isUnknown(StepAt(path, i)) {
			continue
		}
		parsed, err := parseCapability(text)
		if err != nil {
			d.wrong(body.Attributes[name], "%s", sentence(err.Error()))
			continue
		}
		names = append(names, parsed)
	}
	slices.Sort(names)
	spec.Security.DropCapabilities = slices.Compact(names)
}

func (d *decoder) command(l layer, body *hclsyntax.Body, spec *Sandbox) {
	attr := body.Attributes["command"]
	if attr == nil || d.skips(l, attr) {
		return // a missing one is reported with the schema
	}
	switch setTexts(d, l, body, "command", "command", &spec.Command) {
	case absent:
		if v, ok := d.ev.value(l.n, attr, l.scope, d.in.address); ok && v.IsNull() {
			d.ev.fail(d.in.address, attr.Expr.Range().Ptr(), "Missing argument", "command is required, and its value is null.")
		}
		return
	case unknown:
		return
	}
	d.checkCommand(attr, "command", spec.Command)
}

// parts decodes ports, claims, mounts and files.
func (d *decoder) parts(l layer, body *hclsyntax.Body, spec *Sandbox) {
	cloned := map[string]bool{} // which of spec's maps are this instance's own
	mounts := 0
	for _, b := range body.Blocks {
		if rule := sandboxSchema.blocks[b.Type]; rule.label != "" && len(b.Labels) != 1 {
			continue // reported with the schema
		}
		if b.Type == "mount" {
			mounts++
		}
		if d.skipsBlock(b) {
			continue
		}
		if d.phase == own && !cloned[b.Type] {
			cloned[b.Type] = true
			switch b.Type {
			case "port":
				spec.Ports = maps.Clone(spec.Ports)
			case "volume":
				spec.Volumes = maps.Clone(spec.Volumes)
			case "mount":
				spec.Mounts = slices.Clone(spec.Mounts)
			case "file":
				spec.Files = maps.Clone(spec.Files)
			}
		}
		switch b.Type {
		case "port":
			d.port(l, b, spec)
		case "volume":
			d.claim(l, b, spec)
		case "mount":
			if d.phase != own {
				spec.Mounts = append(spec.Mounts, Mount{})
			}
			d.mount(l, b, mounts-1, &spec.Mounts[mounts-1])
		case "file":
			d.file(l, b, spec)
		}
	}
}

// path is the attribute path of a labelled block, such as port.http.
func (d *decoder) path(b *hclsyntax.Block) string {
	if d.n.dynamic != nil { // its blocks may be this instance's own
		return Step(b.Type, b.Labels[0])
	}
	path, known := d.n.paths[b]
	if !known {
		path = Step(b.Type, b.Labels[0])
		if d.n.paths == nil {
			d.n.paths = map[*hclsyntax.Block]string{}
		}
		d.n.paths[b] = path
	}
	return path
}

// pathsDiffer reports whether instances have different paths of claims or mounts.
func (n *declaration) pathsDiffer() bool {
	for _, b := range n.block.Body.Blocks {
		attr := b.Body.Attributes["path"]
		if attr == nil {
			continue
		}
		if x := n.expression(attr); x != nil && x.perInstance {
			return true
		}
	}
	return false
}

// checkPlaces reports two things at one path inside.
func (d *decoder) checkPlaces(spec *Sandbox) {
	if len(spec.Volumes)+len(spec.Mounts)+len(spec.Files) < 2 {
		return
	}
	places := map[string]string{}
	mounts := 0
	for _, b := range d.body.Blocks {
		var what, path string
		rng := exprRange(b, "path")
		switch {
		case b.Type == "mount":
			what, path = "a mount", spec.Mounts[mounts].Path
			mounts++
		case len(b.Labels) != 1:
			continue
		case b.Type == "volume":
			what, path = "volume "+quote(b.Labels[0]), spec.Volumes[b.Labels[0]].Path
		case b.Type == "file":
			what, path, rng = "file "+quote(b.Labels[0]), b.Labels[0], b.LabelRanges[0]
		}
		if path == "" {
			continue
		}
		if other := places[path]; other != "" {
			d.ev.fail(d.in.address, &rng, "Two things at one path", "%s is at %s already, and %s cannot be there too. Give one of them another path.", capital(other), path, what)
			continue
		}
		places[path] = what
	}
}

func exprRange(b *hclsyntax.Block, name string) hcl.Range {
	if attr := b.Body.Attributes[name]; attr != nil {
		return attr.Expr.Range()
	}
	return b.TypeRange
}

func (d *decoder) port(l layer, b *hclsyntax.Block, spec *Sandbox) {
	name := b.Labels[0]
	if !hclsyntax.ValidIdentifier(name) {
		d.ev.fail(d.in.address, b.LabelRanges[0].Ptr(), "Invalid name", "%q cannot name a port: start with a letter, go on with letters, digits, hyphens and underscores.", name)
		return
	}
	path := d.path(b)
	p, started := spec.Ports[name]
	if !started {
		p = Port{Address: "127.0.0.1", Protocol: "tcp"}
	}
	require(d, l, b.Body, "container", path+".container", asContainerPort, &p.Container)
	set(d, l, b.Body, "host", path+".host", asHostPort, &p.Host)
	set(d, l, b.Body, "address", path+".address", asListenAddress, &p.Address)
	set(d, l, b.Body, "protocol", path+".protocol", asProtocol, &p.Protocol)
	if spec.Ports == nil {
		spec.Ports = map[string]Port{}
	}
	spec.Ports[name] = p
}

func (d *decoder) claim(l layer, b *hclsyntax.Block, spec *Sandbox) {
	name := b.Labels[0]
	if !hclsyntax.ValidIdentifier(name) || len(name) > 64 {
		d.ev.fail(d.in.address, b.LabelRanges[0].Ptr(), "Invalid name", "%q cannot name a volume: use at most 64 letters, digits, hyphens and underscores, starting with a letter.", name)
	}
	path := d.path(b)
	c, started := spec.Volumes[name]
	if !started {
		c = Claim{OnDestroy: "delete"}
	}
	require(d, l, b.Body, "path", path+".path", asInside, &c.Path)
	set(d, l, b.Body, "read_only", path+".read_only", asBool, &c.ReadOnly)
	set(d, l, b.Body, "on_destroy", path+".on_destroy", asOnDestroy, &c.OnDestroy)
	if spec.Volumes == nil {
		spec.Volumes = map[string]Claim{}
	}
	spec.Volumes[name] = c
}

func (d *decoder) mount(l layer, b *hclsyntax.Block, i int, m *Mount) {
	path := StepAt("mount", i)
	if address, ok := d.refer(l, b.Body, "volume", path+".volume", "volume", false); ok {
		m.Volume = address
	}
	if set(d, l, b.Body, "host", path+".host", asText(absolute), &m.Host) == present && !allowed(m.Host, d.ev.settings.AllowHostPaths) {
		d.wrong(b.Body.Attributes["host"], "%s", d.ev.settings.hostPathRefusal(m.Host))
	}
	set(d, l, b.Body, "tmpfs", path+".tmpfs", asBool, &m.Tmpfs)
	set(d, l, b.Body, "size", path+".size", asSize, &m.Size)
	require(d, l, b.Body, "path", path+".path", asInside, &m.Path)
	set(d, l, b.Body, "read_only", path+".read_only", asBool, &m.ReadOnly)
	if d.phase == shared && d.n.differs(b) {
		return // whether it is complete shows when the rest is decoded
	}
	sources := 0
	tmpfs := m.Tmpfs || d.isUnknown(path+".tmpfs")
	for _, one := range []bool{d.isWritten(l, b.Body, "volume"), d.isWritten(l, b.Body, "host"), tmpfs} {
		if one {
			sources++
		}
	}
	if sources != 1 {
		d.ev.fail(d.in.address, b.TypeRange.Ptr(), "Invalid mount", "A mount takes exactly one of volume = volume.NAME, host = \"/path\" and tmpfs = true; this one has %d of them.", sources)
	}
	if attr := b.Body.Attributes["size"]; attr != nil && !tmpfs && d.isWritten(l, b.Body, "size") {
		d.ev.fail(d.in.address, attr.NameRange.Ptr(), "Invalid mount", "size goes with tmpfs = true only.")
	}
}

// isWritten reports whether an argument is there and not null; one with errors
// counts as written.
func (d *decoder) isWritten(l layer, body *hclsyntax.Body, name string) bool {
	attr := body.Attributes[name]
	if attr == nil {
		return false
	}
	v, ok := d.ev.value(l.n, attr, l.scope, d.in.address)
	return !ok || !v.IsNull()
}

func (d *decoder) file(l layer, b *hclsyntax.Block, spec *Sandbox) {
	name := b.Labels[0]
	if err := inside(name); err != nil {
		d.ev.fail(d.in.address, b.LabelRanges[0].Ptr(), "Invalid path", "%s", sentence(err.Error()))
	}
	path := d.path(b)
	f, started := spec.Files[name]
	if !started {
		f = File{Mode: "0644"}
	}
	require(d, l, b.Body, "content", path+".content", asContent, &f.Content)
	set(d, l, b.Body, "mode", path+".mode", asMode, &f.Mode)
	if spec.Files == nil {
		spec.Files = map[string]File{}
	}
	spec.Files[name] = f
}

// guard refuses prevent_destroy beside a rule that destroys.
func (d *decoder) guard(spec *Sandbox) {
	if !d.lifecycle.PreventDestroy {
		return
	}
	rng := exprRange(blockOf(d.body, "lifecycle"), "prevent_destroy")
	for _, rule := range []struct{ path, value, instead string }{
		{"shutdown_policy", spec.ShutdownPolicy, "retain"},
		{"lifetime.on_lost", spec.Lifetime.OnLost, "retain"},
	} {
		if rule.value == "delete" {
			from := ""
			if at := d.sources()[rule.path]; at.File != "" {
				from = fmt.Sprintf(" (%s line %d)", at.File, at.Line)
			}
			d.ev.fail(d.n.address(), &rng, "Contradicting rules", "prevent_destroy and %s = \"delete\"%s exclude each other. Use %q, or drop prevent_destroy.", rule.path, from, rule.instead)
		}
	}
}

func checkEnv(key, value string) error {
	if key == "" || strings.ContainsAny(key, "=\x00") {
		return fmt.Errorf("%q cannot name an environment variable: it is empty or contains = or NUL", key)
	}
	if n := len(key) + 1 + len(value); n > maxString {
		return tooLong("variable "+quote(key), n)
	}
	return noNUL(value)
}

func checkLabel(key, value string) error {
	if key == "" || len(key) > 128 || len(value) > 1024 {
		return fmt.Errorf("label %q: a label's name has 1 to 128 bytes, its value at most 1024", key)
	}
	if strings.ContainsFunc(key+value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errors.New("a label has no control characters")
	}
	return nil
}

// allowed reports whether path is one of the directories or below one.
func allowed(path string, dirs []string) bool {
	for _, dir := range dirs {
		if path == dir || dir == "/" || strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}

// hostPathRefusal says which setting would allow the mount.
func (s Settings) hostPathRefusal(path string) string {
	file := s.File
	if file == "" {
		file = "the host settings (/etc/pinfold/host.hcl)"
	}
	if len(s.AllowHostPaths) == 0 {
		return fmt.Sprintf("Mounts of host paths are not allowed on this host. Set allow_host_paths = [%q] in %s, or use a volume.", path, file)
	}
	return fmt.Sprintf("%s is not below one of allow_host_paths = [%s] in %s. Use a directory of those, or a volume.", path, strings.Join(quoteAll(s.AllowHostPaths), ", "), file)
}

func quoteAll(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = quote(s)
	}
	return out
}
