package config

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// metaArguments of a module block are not inputs.
var metaArguments = []string{"source", "for_each", "count", "depends_on", "version", "providers"}

// library is the directories that modules are called from, by directory.
type library struct {
	*sink
	files   map[string][]parsedFile
	unread  map[string]string // why a directory, with a slash at its end, has none
	modules map[string]*module
	order   []*module // callers first
}

// newLibrary works out the root module and all that it calls.
func newLibrary(k *sink, files []parsedFile, unread map[string]string) *module {
	l := &library{sink: k, files: map[string][]parsedFile{}, unread: unread, modules: map[string]*module{}}
	for _, f := range files {
		l.files[f.dir()] = append(l.files[f.dir()], f)
	}
	root := l.module(".", "", nil)
	for _, m := range l.order {
		m.resolve(k)
	}
	return root
}

// module is the one in a directory. way are the directories that lead there.
func (l *library) module(dir, path string, way []string) *module {
	if m := l.modules[dir]; m != nil {
		return m
	}
	m := &module{dir: dir, path: path, decls: map[string]map[string]*declaration{}}
	l.modules[dir] = m
	l.order = append(l.order, m)
	m.collect(l.sink, l.files[dir])
	way = append(way, dir)
	for _, name := range m.names("module") {
		l.call(m.lookup("module", name), way)
	}
	return m
}

// call finds the module that a block calls, and compares what it gives with what
// the module takes.
func (l *library) call(d *declaration, way []string) {
	d.inputs = map[string]*declaration{}
	for name, attr := range d.block.Body.Attributes {
		if !slices.Contains(metaArguments, name) {
			d.inputs[name] = d.m.place(&declaration{kind: "input", name: name, m: d.m, rng: attr.NameRange, block: d.block, local: attr})
		}
	}
	if d.attr("depends_on") != nil {
		d.after = d.m.place(&declaration{kind: "after", name: d.name, m: d.m, rng: d.rng, block: d.block})
	}
	attr := d.attr("source")
	if attr == nil { // reported by check; what may have been meant is said here
		for _, name := range slices.Sorted(maps.Keys(d.inputs)) {
			if best := closest(name, metaArguments[:4]); best != "" {
				l.fail(d.blame(), d.inputs[name].rng.Ptr(), "Unknown argument", "%s has no argument %q. Did you mean %q?", capital(d.title()), name, best)
			}
		}
		return
	}
	dir, why := localSource(d.m.dir, attr)
	rng := attr.Expr.Range()
	switch {
	case why != "":
		l.fail(d.blame(), &rng, "Invalid module source", "%s", why)
		return
	case slices.Contains(way, dir):
		from := slices.Index(way, dir)
		l.fail(d.blame(), &rng, "Cycle of modules", "A module cannot call itself, not through others either: %s. Take one of these calls out.",
			strings.Join(quoteAll(append(slices.Clone(way[from:]), dir)), " → "))
		return
	case len(l.files[dir]) == 0:
		what := "there are no *.hcl files in it"
		if reason := l.unread[dir+"/"]; reason != "" {
			what = reason
		}
		l.fail(d.blame(), &rng, "No such module", "Directory %s is no module: %s. The path counts from the directory of the file that has the block.", dir, what)
		return
	}
	d.calls = l.module(dir, inModule(d.m.path, d.relative()), way)
	l.checkInputs(d)
}

// localSource is the directory that a source argument of a module in from names,
// relative to the root module, or what is wrong with it.
func localSource(from string, attr *hclsyntax.Attribute) (dir, why string) {
	work := newBudget()
	v, diags := work.within(attr.Expr, work.constants())
	if diags.HasErrors() || v.IsNull() || !v.IsKnown() || v.Type() != cty.String {
		return "", "A source is a plain string, without references and functions: files are read before anything is evaluated. Write a directory such as \"./modules/ci\"."
	}
	source := v.AsString()
	switch {
	case source == "." || source == "..", strings.HasPrefix(source, "./"), strings.HasPrefix(source, "../"):
		return path.Join(from, source), ""
	case strings.HasPrefix(source, "/"):
		return "", "Modules are directories beside the configuration, so that it can be moved as a whole: write a path that begins with ./ or ../, not " + quote(source) + "."
	case strings.ContainsAny(source, ":?") || strings.Count(source, "/") > 1 && strings.Contains(source, "."):
		return "", "Modules are local directories; " + quote(source) + " would have to be fetched, and nothing is. Put the module beside the configuration and write a path that begins with ./ or ../."
	}
	return "", "Modules are local directories, written with ./ or ../ in front. Did you mean " + quote("./"+strings.TrimPrefix(source, "./")) + "?"
}

// checkInputs reports inputs that the module does not take, and those it needs.
func (l *library) checkInputs(d *declaration) {
	for _, name := range slices.Sorted(maps.Keys(d.inputs)) {
		if d.calls.lookup("var", name) == nil {
			names := append(d.calls.names("var"), metaArguments[:4]...)
			l.fail(d.blame(), d.inputs[name].rng.Ptr(), "Unknown input", "Module %s in %s has no variable %q%s",
				quote(d.name), d.calls.dir, name, ended(didYouMean(name, names)))
		}
	}
	for _, name := range d.calls.names("var") {
		v := d.calls.lookup("var", name)
		if d.inputs[name] == nil && v.attr("default") == nil {
			l.fail(d.blame(), d.rng.Ptr(), "Missing input", "The module needs a value for its variable %q (%s line %d), which has no default.",
				name, v.rng.Filename, v.rng.Start.Line)
		}
	}
}

// moduleInstance is one instance of a module: a scope of its own, in which each
// declaration is evaluated by itself.
type moduleInstance struct {
	m       *module
	address string // empty for the root module
	way     []moduleStep
	parent  *moduleInstance // of the module that calls; nil for the root module
	call    *node           // the block there
	each    map[string]cty.Value
	key     any              // among the call's instances
	phantom bool             // there is no such instance: what is wrong with all is looked for
	base    *hcl.EvalContext // what all expressions can read
	nodes   []node           // by the declaration's slot
}

func (ev *evaluation) newInstance(m *module) *moduleInstance {
	home := &moduleInstance{m: m, base: ev.baseOf(m), nodes: make([]node, m.slots)}
	for _, d := range m.ordered {
		home.nodes[d.slot] = node{declaration: d, home: home}
		for _, in := range d.inputs {
			home.nodes[in.slot] = node{declaration: in, home: home}
		}
		if d.after != nil {
			home.nodes[d.after.slot] = node{declaration: d.after, home: home}
		}
	}
	return home
}

// baseOf is the context of expressions in a module that refer to nothing.
func (ev *evaluation) baseOf(m *module) *hcl.EvalContext {
	base := ev.bases[m]
	if base == nil {
		path := cty.ObjectVal(map[string]cty.Value{"module": cty.StringVal(m.dir), "root": cty.StringVal(".")})
		base = &hcl.EvalContext{Variables: map[string]cty.Value{"path": path, budgetName: ev.budget.value()}, Functions: ev.functions}
		ev.bases[m] = base
	}
	return base
}

// node is the module instance's evaluation of a declaration.
func (home *moduleInstance) node(d *declaration) *node { return &home.nodes[d.slot] }

// call expands a module block to its instances.
func (ev *evaluation) call(n *node) {
	if n.calls == nil || !ev.expand(n) {
		n.broken = true
		return
	}
	if ev.modules += len(n.instances); ev.modules > maxModules {
		ev.fail(n.address(), n.rng.Ptr(), "Too many modules", "The configuration has more than %d module instances.", maxModules)
		n.broken, n.instances = true, nil
		return
	}
	n.modules = make([]*moduleInstance, len(n.instances))
	for i, in := range n.instances {
		n.modules[i] = ev.instance(n, in.address, in.key, in.each.Variables)
	}
}

// instance is one instance of the module that n calls.
func (ev *evaluation) instance(n *node, address string, key any, each map[string]cty.Value) *moduleInstance {
	home := ev.newInstance(n.calls)
	home.address, home.key, home.each = address, key, each
	home.way = append(slices.Clip(n.home.way), moduleStep{n.name, key})
	home.parent, home.call, home.phantom = n.home, n, n.home.phantom
	return home
}

// all evaluates everything that is declared in a module instance, at any depth.
func (ev *evaluation) all(home *moduleInstance, chain []*node) {
	for _, d := range home.m.ordered {
		ev.visit(home.node(d), chain)
	}
	for _, name := range home.m.names("module") {
		call := home.node(home.m.lookup("module", name))
		for _, in := range call.modules {
			ev.all(in, chain)
		}
	}
}

// unused evaluates the modules that have no instance, or none that is known, for
// what is wrong with them whatever their instances will be. Nothing of them remains.
func (ev *evaluation) unused(home *moduleInstance) {
	for _, name := range home.m.names("module") {
		call := home.node(home.m.lookup("module", name))
		for _, in := range call.modules {
			ev.unused(in)
		}
		if len(call.modules) > 0 || call.calls == nil {
			continue
		}
		phantom := ev.instance(call, call.address(), nil, nil)
		phantom.phantom = true
		out, ranges, ports, hosts := ev.out, ev.ranges, ev.ports, ev.hosts
		ev.all(phantom, nil)
		ev.unused(phantom)
		ev.out, ev.ranges, ev.ports, ev.hosts = out, ranges, ports, hosts
	}
}

// input gives a variable of a module what the block that calls it says.
func (ev *evaluation) input(n *node) (v cty.Value, rng hcl.Range, given bool) {
	d := n.home.call.inputs[n.name]
	if d == nil {
		return cty.NilVal, n.rng, false
	}
	in := n.home.parent.node(d)
	rng = d.local.Expr.Range()
	n.tainted = n.tainted || in.tainted
	x := d.exprs[d.local]
	scope := in.scope
	n.needs = in.needs
	switch {
	case in.broken || x.bad:
		n.broken = true
		return cty.DynamicVal, rng, true
	case x.perInstance && n.home.each == nil: // a phantom's
		n.tainted = true
		return cty.DynamicVal, rng, true
	case x.perInstance:
		scope = scope.NewChild()
		scope.Variables = n.home.each
		lists := [][]string{in.needs}
		for _, r := range in.computed {
			lists = append(lists, r.addresses(n.home.parent, scope))
		}
		if x.readsValue {
			lists = append(lists, n.home.call.needs)
		}
		n.needs = union(lists...)
	}
	v, ok := ev.value(in, d.local, scope, n.home.address)
	if !ok {
		n.broken = true
		return cty.DynamicVal, rng, true
	}
	return v, rng, true
}

// outputs is what references to a call see of the named outputs, or of all: an
// object, or an object by key or a tuple of them.
func (n *node) outputs(names []string) cty.Value {
	if n.broken {
		return cty.DynamicVal
	}
	id := strings.Join(names, ",")
	if v, done := n.values[id]; done {
		return v
	}
	elements := make([]cty.Value, len(n.modules))
	for i, in := range n.modules {
		attrs := make(map[string]cty.Value, len(names))
		for _, name := range names {
			attrs[name] = in.node(in.m.lookup("output", name)).value
		}
		elements[i] = cty.ObjectVal(attrs)
	}
	var v cty.Value
	switch {
	case !n.repeated():
		v = elements[0]
	case n.attr("count") != nil:
		v = cty.TupleVal(elements)
	default:
		byKey := make(map[string]cty.Value, len(elements))
		for i, in := range n.modules {
			byKey[in.key.(string)] = elements[i]
		}
		v = cty.ObjectVal(byKey)
	}
	if n.values == nil {
		n.values = map[string]cty.Value{}
	}
	n.values[id] = v
	return v
}

// resources are the addresses of all resource instances in a module instance, at any
// depth, once all of it is evaluated.
func (home *moduleInstance) resources() []string {
	var out []string
	for _, d := range home.m.ordered {
		n := home.node(d)
		if d.isResource() {
			for _, in := range n.instances {
				out = append(out, in.address)
			}
		}
		for _, in := range n.modules {
			out = append(out, in.resources()...)
		}
	}
	return out
}
