package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
)

// maxInstances bounds what one for_each or count may ask for.
const maxInstances = 100_000

// Evaluate works out what the configuration asks for. ex holds what is known of
// the resources that exist; what others would read of the rest is unknown, and
// Resource.Unknown names the attributes concerned. It reads no disk, and gives
// the same result for the same arguments. Every error of the configuration is
// reported in one go, and there is no Desired then.
//
// The cost grows linearly with the number of instances: 20 to 50 µs and about
// 10 kB each (BenchmarkEvaluate). Instances share slices and maps that are equal
// for all of them: treat a Desired as read-only.
func (s *Source) Evaluate(set Settings, ex Exports) (*Desired, Diagnostics) {
	ev := newEvaluation(s, set, ex, &disk{source: s})
	desired := ev.run()
	if ev.failed() {
		desired = nil
	}
	return desired, ev.sorted()
}

// Judge is Evaluate for who acts on conditions: what fails of them is among the Checks
// of what is desired, and no diagnostic.
func (s *Source) Judge(set Settings, ex Exports) (*Desired, Diagnostics) {
	ev := newEvaluation(s, set, ex, &disk{source: s})
	ev.lenient = true
	desired := ev.run()
	if ev.failed() {
		desired = nil
	}
	return desired, ev.sorted()
}

// Check reports what is wrong with the configuration whatever values its variables
// will have: one that is not set and has no default is unknown, of its type.
func (s *Source) Check(set Settings) Diagnostics {
	ev := newEvaluation(s, set, nil, &disk{source: s, valueless: true})
	ev.valueless = true
	ev.run()
	return ev.sorted()
}

// Bounds of what one configuration may ask for in all.
const (
	maxModules   = 100_000   // module instances
	maxResources = 1_000_000 // instances of blocks
)

// evaluation is one run over a Source.
type evaluation struct {
	*sink
	src       *Source
	settings  Settings
	exports   Exports
	functions map[string]function.Function
	budget    *budget
	valueless bool // variables without a value are unknown, and so is what they decide
	console   bool // anything may be referred to afterwards
	lenient   bool // conditions that fail are kept and not reported
	root      *moduleInstance
	host      *hostPolicies
	known     map[string]string // kind of each resource instance, by address
	policies  map[string]*node  // by address
	bases     map[*module]*hcl.EvalContext
	modules   int // instances of them
	resources int
	work      int // nodes visited and references followed: what the cost grows with
	ranges    []rangeUse
	ports     []portUse
	hosts     []hostUse
	importing []importUse // as out.Imports
	out       Desired
}

func newEvaluation(s *Source, set Settings, ex Exports, d *disk) *evaluation {
	b := newBudget()
	return &evaluation{
		sink: newSink(), src: s, settings: set, exports: ex, functions: functions(d, b), budget: b,
		known: map[string]string{}, policies: map[string]*node{}, bases: map[*module]*hcl.EvalContext{},
	}
}

func (ev *evaluation) run() *Desired {
	files := ev.src.parsed
	if files == nil {
		files = parseFiles(ev.sink, ev.src.Files)
	} else {
		for _, f := range files {
			ev.source(f.name, f.src, f.body)
		}
	}
	ev.root = ev.newInstance(newLibrary(ev.sink, files, ev.src.unread))
	ev.host = ev.readHostPolicies()
	ev.undeclared()
	ev.all(ev.root, nil)
	ev.unused(ev.root)
	ev.crossCheck()
	ev.relocations()
	slices.SortFunc(ev.out.Images, byAddress[Image])
	slices.SortFunc(ev.out.Networks, byAddress[Network])
	slices.SortFunc(ev.out.Volumes, byAddress[Volume])
	slices.SortFunc(ev.out.Sandboxes, byAddress[Sandbox])
	slices.SortFunc(ev.out.Outputs, func(a, b Output) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(ev.out.Checks, func(a, b Check) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Source.File, b.Source.File), cmp.Compare(a.Source.Line, b.Source.Line))
	})
	return &ev.out
}

func byAddress[T any](a, b Resource[T]) int { return cmp.Compare(a.Address, b.Address) }

// node is what a declaration comes to in one instance of its module.
type node struct {
	*declaration
	home *moduleInstance

	state   visit
	broken  bool // has no value: its errors are reported, users of it stay silent
	tainted bool // depends on something broken

	value     cty.Value
	place     *hcl.Range // of a variable's value; nil for one that has no place in a file
	scope     *hcl.EvalContext
	results   []result // of its expressions, by slot
	instances []instance
	byKey     map[any]int     // of instances of for_each or count
	needs     []string        // addresses of the resources it depends on, own references and those of locals and policies
	computed  []reference     // to resources and modules, with a key that differs per instance
	ports     cty.Value       // exports of ports that all instances share
	body      *hclsyntax.Body // with its dynamic blocks written out, if that is the same for all instances

	// of a module block
	modules  []*moduleInstance    // as instances
	ready    map[string]bool      // outputs that are evaluated in all instances, and whether one is tainted; "" for all outputs
	complete bool                 // everything in them is evaluated
	values   map[string]cty.Value // what references see, by the outputs' names
}

type visit int

const (
	unvisited visit = iota
	visiting
	visited
)

// result is what an argument that is the same for all instances came to.
type result struct {
	value        cty.Value
	done, failed bool
}

// instance is one element of a resource or module.
type instance struct {
	address string
	key     any // nil, string, int
	each    *hcl.EvalContext
}

func (n *node) address() string { return inModule(n.home.address, n.relative()) }

// blame is the address that errors about the node carry; empty for what is no
// resource of the root module.
func (n *node) blame() string {
	if n.isResource() || n.kind == "module" {
		return n.address()
	}
	return n.home.address
}

// visit evaluates n after everything it depends on. chain is the way that led
// here, for the report of a cycle.
func (ev *evaluation) visit(n *node, chain []*node) {
	switch n.state {
	case visited:
		return
	case visiting:
		from := slices.Index(chain, n)
		ev.cycle(append(slices.Clone(chain[from:]), n))
		return
	}
	n.state = visiting
	ev.work++
	chain = append(chain, n)
	for _, dep := range n.deps {
		ev.visitDependency(n, n.home.node(dep.target), dep, chain)
	}
	for _, dep := range n.outside() {
		ev.visit(dep, chain)
		n.tainted = n.tainted || dep.broken || dep.tainted
	}
	n.state = visited
	if n.broken {
		n.value = cty.DynamicVal
		return
	}
	ev.scopeOf(n)
	ev.needsOf(n)
	switch n.kind {
	case "validation":
		ev.validate(n)
	case "check":
		ev.checkBlock(n)
	case "import":
		ev.imports(n)
	case "input", "after":
		// Their instances are whoever reads them.
	case "var":
		ev.variable(n)
	case "local":
		ev.local(n)
	case "module":
		ev.call(n)
	case "policy":
		n.value = cty.ObjectVal(map[string]cty.Value{"id": cty.StringVal(n.address())})
		ev.policies[n.address()] = n
		ev.checkPolicy(ev.policyLayer(n))
	case "output":
		ev.output(n)
	default:
		ev.resource(n)
	}
	if n.broken {
		n.value = cty.DynamicVal
	}
}

// visitDependency evaluates what n needs of target: of a module, the output named,
// or all, or for a depends_on everything in it.
func (ev *evaluation) visitDependency(n, target *node, dep dependency, chain []*node) {
	ev.work++
	ev.visit(target, chain)
	n.tainted = n.tainted || target.broken || target.tainted
	if target.kind != "module" || target.broken {
		return
	}
	if !target.complete && slices.ContainsFunc(n.explicit, func(r reference) bool { return r.target == dep.target }) {
		for _, in := range target.modules {
			ev.all(in, chain)
		}
		target.complete = true
	}
	tainted, ready := target.ready[dep.output]
	if !ready {
		for _, in := range target.modules {
			for _, name := range outputNames(dep) {
				out := in.node(in.m.lookup("output", name))
				ev.work++
				ev.visit(out, chain)
				tainted = tainted || out.broken || out.tainted
			}
		}
		if target.ready == nil {
			target.ready = map[string]bool{}
		}
		target.ready[dep.output] = tainted
	}
	n.tainted = n.tainted || tainted
}

func outputNames(dep dependency) []string {
	if dep.output != "" {
		return []string{dep.output}
	}
	return dep.target.calls.names("output")
}

// outside are the nodes of the calling module that n depends on: the argument that
// gives a variable its value, and what the module as a whole comes after.
func (n *node) outside() []*node {
	call := n.home.call
	switch {
	case call == nil:
	case n.kind == "var" && call.inputs[n.name] != nil:
		return []*node{n.home.parent.node(call.inputs[n.name])}
	case n.isResource() || n.kind == "module" || n.kind == "after":
		if after := n.home.after(); after != nil {
			return []*node{after}
		}
	}
	return nil
}

// after is the nearest depends_on of the modules that home lies in.
func (home *moduleInstance) after() *node {
	for ; home.call != nil; home = home.parent {
		if d := home.call.declaration.after; d != nil {
			return home.parent.node(d)
		}
	}
	return nil
}

// cycle reports a chain of references that ends where it began.
func (ev *evaluation) cycle(chain []*node) {
	var words []string
	for _, n := range chain {
		n.broken = true
		if n.kind != "input" { // the variable it is for says as much
			words = append(words, n.shown())
		}
	}
	first := chain[0]
	if len(chain) == 2 {
		ev.fail(first.blame(), first.rng.Ptr(), "Reference to itself", "%s refers to itself. Put what both sides need into locals.", capital(first.title()))
		return
	}
	ev.fail(first.blame(), first.rng.Ptr(), "Cycle of references", "None of these can come first: %s. Break the chain at one place, for example by putting the shared value into locals.", strings.Join(words, " → "))
}

// shown is how a chain of references names a node.
func (n *node) shown() string {
	if n.kind == "after" {
		return inModule(n.home.address, "module."+n.name+" (depends_on)")
	}
	return n.address()
}

// scopeOf makes the context that n's expressions are evaluated in: just what
// they refer to, so that the cost does not grow with the whole configuration.
func (ev *evaluation) scopeOf(n *node) {
	if len(n.deps) == 0 {
		n.scope = n.home.base
		return
	}
	groups := make(map[string]map[string]cty.Value, 4)
	var modules map[*declaration][]string
	for _, dep := range n.deps {
		if dep.target.kind == "module" {
			if modules == nil {
				modules = map[*declaration][]string{}
			}
			if dep.target.calls != nil {
				modules[dep.target] = append(modules[dep.target], outputNames(dep)...)
			} else {
				modules[dep.target] = nil
			}
			continue
		}
		if groups[dep.target.kind] == nil {
			groups[dep.target.kind] = map[string]cty.Value{}
		}
		groups[dep.target.kind][dep.target.name] = n.home.node(dep.target).value
	}
	vars := make(map[string]cty.Value, len(groups)+1)
	for kind, group := range groups {
		vars[kind] = cty.ObjectVal(group)
	}
	if modules != nil {
		group := make(map[string]cty.Value, len(modules))
		for d, names := range modules {
			slices.Sort(names)
			group[d.name] = n.home.node(d).outputs(slices.Compact(names))
		}
		vars["module"] = cty.ObjectVal(group)
	}
	n.scope = n.home.base.NewChild()
	n.scope.Variables = vars
}

// needsOf collects the resources n depends on, other than through references
// whose key is computed per instance.
func (ev *evaluation) needsOf(n *node) {
	var lists [][]string
	for _, x := range n.exprs {
		for _, r := range x.refs {
			switch {
			case r.index == nil || !x.perInstance:
				lists = append(lists, r.addresses(n.home, n.scope))
			case r.target.isResource() || r.target.kind == "module":
				n.computed = append(n.computed, r)
			}
		}
	}
	for _, r := range n.explicit {
		lists = append(lists, r.addresses(n.home, n.scope))
	}
	for _, t := range n.triggers {
		if t.index == nil {
			lists = append(lists, t.addresses(n.home, n.scope))
		} else {
			n.computed = append(n.computed, t.reference)
		}
	}
	if n.kind != "var" {
		for _, outside := range n.outside() {
			lists = append(lists, outside.needs)
		}
	}
	n.needs = union(lists...)
}

// union is all that is in the lists, sorted. A single list is not copied.
func union(lists ...[]string) []string {
	lists = slices.DeleteFunc(lists, func(l []string) bool { return len(l) == 0 })
	switch {
	case len(lists) == 0:
		return nil
	case len(lists) == 1 && slices.IsSorted(lists[0]):
		return lists[0]
	}
	out := slices.Concat(lists...)
	slices.Sort(out)
	return slices.Compact(out)
}

// addresses are the resource instances that must exist for a reference from home:
// of a resource the one that its key names, or all; of a module what its outputs
// need, or all that is in it; else what the value needs.
func (r reference) addresses(home *moduleInstance, scope *hcl.EvalContext) []string {
	t := home.node(r.target)
	if !t.isResource() && t.kind != "module" {
		return t.needs
	}
	if t.broken {
		return nil
	}
	chosen := t.instances
	from := 0
	if t.repeated() {
		if i, ok := t.byKey[r.keyIn(scope)]; ok {
			chosen, from = t.instances[i:i+1], i
		}
	}
	var out []string
	for i, in := range chosen {
		switch {
		case t.isResource():
			out = append(out, in.address)
		case r.whole:
			out = append(out, t.modules[from+i].resources()...)
		default:
			m := t.modules[from+i]
			for _, name := range outputNames(dependency{r.target, r.output}) {
				out = append(out, m.node(m.m.lookup("output", name)).needs...)
			}
		}
	}
	return out
}

// keyIn is the key of the one instance that a reference names; nil when it names none.
func (r reference) keyIn(scope *hcl.EvalContext) any {
	if r.index != nil {
		// A key that uses the variable of a for expression cannot be known here.
		if v, diags := r.index.Value(scope); !diags.HasErrors() {
			if computed, err := keyOf(v); err == nil {
				return computed
			}
		}
	}
	return r.key
}

// policyLayer is a policy as a place that values come from.
func (ev *evaluation) policyLayer(n *node) layer {
	return layer{n: n, scope: n.scope, policy: n.address(), body: ev.bodyOf(n, &instance{address: n.address(), each: n.scope})}
}

// checkPolicy reports what is wrong with a policy, whether it is used or not.
func (ev *evaluation) checkPolicy(l layer) {
	var spec Sandbox
	ev.decoder(l.n, &instance{each: l.scope}).rules(l, l.body, &spec)
}

func (ev *evaluation) local(n *node) {
	v, ok := ev.value(n, n.local, n.scope, n.blame())
	if !ok {
		n.broken = true
		return
	}
	n.value = v
}

// value evaluates an argument of n. ok is false when it has errors, which are
// then reported. An argument that reads neither each nor count is evaluated
// once for all instances.
func (ev *evaluation) value(n *node, attr *hclsyntax.Attribute, scope *hcl.EvalContext, address string) (v cty.Value, ok bool) {
	x := n.expression(attr)
	if x == nil || x.bad {
		return cty.NilVal, false
	}
	if _, element := attr.Expr.(elementExpr); element {
		return ev.evaluate(n, x, attr, scope, address)
	}
	if n.results == nil {
		n.results = make([]result, len(n.exprs))
	}
	kept := &n.results[x.slot]
	if kept.done {
		return kept.value, !kept.failed
	}
	v, ok = ev.evaluate(n, x, attr, scope, address)
	if !x.perInstance {
		*kept = result{v, true, !ok}
	}
	return v, ok
}

// expression is what is known of an argument, also of one of a block that a dynamic
// block made.
func (d *declaration) expression(attr *hclsyntax.Attribute) *expression {
	if e, element := attr.Expr.(elementExpr); element {
		return d.exprs[e.of]
	}
	return d.exprs[attr]
}

func (ev *evaluation) evaluate(n *node, x *expression, attr *hclsyntax.Attribute, scope *hcl.EvalContext, address string) (cty.Value, bool) {
	v, diags := ev.budget.within(attr.Expr, scope)
	if !ev.budget.told { // once is enough: everything fails from then on
		for _, diag := range diags {
			ev.add(address, discreet(n.explain(x, diag), attr.Expr, scope))
		}
		ev.budget.told = ev.budget.over()
	}
	return v, !diags.HasErrors()
}

// explain says which keys there are when one does not exist.
func (n *node) explain(x *expression, d *hcl.Diagnostic) *hcl.Diagnostic {
	if d.Subject == nil || d.Summary != "Invalid index" && d.Summary != "Unsupported attribute" {
		return d
	}
	for _, r := range x.refs {
		if r.key == nil || !r.rng.Overlaps(*d.Subject) {
			continue
		}
		t := n.home.node(r.target)
		if _, found := t.byKey[r.key]; found || t.byKey == nil {
			continue
		}
		explained := *d
		explained.Summary = "No such instance"
		explained.Detail = fmt.Sprintf("%s%s does not exist. %s", t.relative(), index(r.key), t.keysHint(r.key))
		return &explained
	}
	return d
}

// keysHint says which keys there are when the given one does not exist.
func (n *node) keysHint(key any) string {
	if len(n.instances) == 0 {
		return "It has no instances."
	}
	text, ok := key.(string)
	if !ok {
		return fmt.Sprintf("Its keys go from 0 to %d.", len(n.instances)-1)
	}
	var keys []string
	for _, in := range n.instances {
		keys = append(keys, fmt.Sprint(in.key))
	}
	hint := "Its keys are " + strings.Join(quoteAll(keys[:min(len(keys), 5)]), ", ")
	if len(keys) > 5 {
		hint += fmt.Sprintf(" and %d more", len(keys)-5)
	}
	return hint + ended(didYouMean(text, keys))
}

// resource expands a block to its instances and decodes each.
func (ev *evaluation) resource(n *node) {
	if !ev.expand(n) || !ev.fits(n) {
		n.broken = true
		// Which instances there are is not known, but what is wrong with all of them is.
		ev.checkShared(n)
		return
	}
	if len(n.instances) == 0 {
		ev.checkUnused(n)
	}
	if n.kind == "sandbox" {
		ev.sandboxes(n)
		return
	}
	elements := make([]cty.Value, 0, len(n.instances))
	for i := range n.instances {
		in := &n.instances[i]
		ev.known[in.address] = n.kind
		d := ev.decoder(n, in)
		switch n.kind {
		case "image":
			elements = append(elements, d.image())
		case "network":
			elements = append(elements, d.network())
		case "volume":
			elements = append(elements, d.volume())
		}
	}
	ev.setValue(n, elements)
}

// fits counts the block's instances, and reports when there are too many in all.
func (ev *evaluation) fits(n *node) bool {
	before := ev.resources
	ev.resources += len(n.instances)
	if ev.resources <= maxResources {
		return true
	}
	if before <= maxResources {
		ev.fail(n.address(), n.rng.Ptr(), "Too many instances", "The configuration has more than %d resource instances.", maxResources)
	}
	n.instances = nil
	return false
}

// checkShared reports what is wrong in the part of a block that all its instances
// have in common. What it decodes is in nobody's way: there is no Desired any more.
func (ev *evaluation) checkShared(n *node) {
	d := ev.sharedDecoder(n)
	switch n.kind {
	case "image":
		d.image()
	case "network":
		d.network()
	case "volume":
		d.volume()
	case "sandbox":
		d.sharedSandbox()
	}
}

// checkUnused is checkShared for a block without instances: what it decodes is
// dropped.
func (ev *evaluation) checkUnused(n *node) {
	images, networks, volumes, ranges := len(ev.out.Images), len(ev.out.Networks), len(ev.out.Volumes), len(ev.ranges)
	ev.checkShared(n)
	ev.out.Images, ev.out.Networks, ev.out.Volumes = ev.out.Images[:images], ev.out.Networks[:networks], ev.out.Volumes[:volumes]
	ev.ranges = ev.ranges[:ranges]
}

// setValue makes what references to the block see: one object, or a map or
// list of them.
func (ev *evaluation) setValue(n *node, elements []cty.Value) {
	switch {
	case !n.repeated():
		n.value = elements[0]
	case n.attr("count") != nil && len(elements) == 0:
		n.value = cty.ListValEmpty(ev.exportType(n))
	case n.attr("count") != nil:
		n.value = cty.ListVal(elements)
	case len(elements) == 0:
		n.value = cty.MapValEmpty(ev.exportType(n))
	default:
		byKey := make(map[string]cty.Value, len(elements))
		for i, v := range elements {
			byKey[n.instances[i].key.(string)] = v
		}
		n.value = cty.MapVal(byKey)
	}
}

// expand works out the instances of a block.
func (ev *evaluation) expand(n *node) bool {
	forEach, count := n.attr("for_each"), n.attr("count")
	switch {
	case forEach != nil && count != nil:
		ev.fail(n.blame(), count.NameRange.Ptr(), "Both for_each and count", "A block has for_each or count, not both.")
		return false
	case forEach != nil:
		return ev.expandForEach(n, forEach)
	case count != nil:
		return ev.expandCount(n, count)
	}
	if n.home.call != nil {
		ev.allow(1) // the text of a module stands for as many blocks as it has instances
	}
	n.instances = []instance{{address: n.address(), each: n.scope}}
	return true
}

func (ev *evaluation) expandForEach(n *node, attr *hclsyntax.Attribute) bool {
	v, ok := ev.value(n, attr, n.scope, n.blame())
	if !ok {
		return false
	}
	rng := attr.Expr.Range().Ptr()
	ty := v.Type()
	if v.IsMarked() { // values of a map may be, as they decide nothing here
		ev.misplaced(n.blame(), attr)
		return false
	}
	switch {
	case v.IsNull():
		ev.fail(n.blame(), rng, "Invalid for_each", "The value is null. Use an empty map or set for no instances.")
		return false
	case !v.IsKnown() || ty.IsSetType() && !v.IsWhollyKnown():
		ev.unknownKeys(n, attr, "for_each")
		return false
	case ty.IsListType() || ty.IsTupleType():
		ev.fail(n.blame(), rng, "Invalid for_each", "A list has no keys to tell instances apart by. Write toset([…]) if the elements are different strings, or { for x in list : key => x }.")
		return false
	case !ty.IsMapType() && !ty.IsObjectType() && !(ty.IsSetType() && (ty.ElementType() == cty.String || v.LengthInt() == 0)):
		ev.fail(n.blame(), rng, "Invalid for_each", "A map, an object or a set of strings is needed, not %s.", ty.FriendlyName())
		return false
	case v.LengthInt() > maxInstances:
		ev.fail(n.blame(), rng, "Invalid for_each", "It has %d elements; a block has at most %d instances.", v.LengthInt(), maxInstances)
		return false
	}
	ev.allow(v.LengthInt())
	n.byKey = make(map[any]int, v.LengthInt())
	valid := true
	for it := v.ElementIterator(); it.Next(); {
		key, value := it.Element()
		if key.IsNull() {
			ev.fail(n.blame(), rng, "Invalid for_each", "The set has a null element.")
			return false
		}
		k := key.AsString()
		if k == "" || len(k) > 256 || strings.ContainsFunc(k, func(r rune) bool { return !unicode.IsPrint(r) }) {
			ev.fail(n.blame(), rng, "Invalid for_each", "%q cannot be a key: use 1 to 256 bytes of printable text.", k)
			valid = false
			continue
		}
		each := n.scope.NewChild()
		each.Variables = map[string]cty.Value{"each": cty.ObjectVal(map[string]cty.Value{"key": key, "value": value})}
		n.addInstance(k, each)
	}
	return valid
}

func (ev *evaluation) expandCount(n *node, attr *hclsyntax.Attribute) bool {
	v, ok := ev.value(n, attr, n.scope, n.blame())
	if !ok {
		return false
	}
	if v, ok = ev.open(n.blame(), attr, v); !ok {
		return false
	}
	rng := attr.Expr.Range().Ptr()
	number, err := convert.Convert(v, cty.Number)
	switch {
	case err != nil || v.IsNull():
		ev.fail(n.blame(), rng, "Invalid count", "A whole number from 0 on is needed.")
		return false
	case !number.IsKnown():
		ev.unknownKeys(n, attr, "count")
		return false
	}
	total, accuracy := number.AsBigFloat().Int64()
	if accuracy != 0 || total < 0 || total > maxInstances {
		ev.fail(n.blame(), rng, "Invalid count", "A whole number from 0 to %d is needed, not %s.", maxInstances, number.AsBigFloat().Text('g', 10))
		return false
	}
	ev.allow(int(total))
	n.byKey = make(map[any]int, total)
	for i := range int(total) {
		each := n.scope.NewChild()
		each.Variables = map[string]cty.Value{"count": cty.ObjectVal(map[string]cty.Value{"index": cty.NumberIntVal(int64(i))})}
		n.addInstance(i, each)
	}
	return true
}

// allow lets the block's instances cost something.
func (ev *evaluation) allow(instances int) {
	if !ev.budget.over() {
		ev.budget.left += int64(instances) * instanceSteps
	}
}

func (n *node) addInstance(key any, each *hcl.EvalContext) {
	n.byKey[key] = len(n.instances)
	n.instances = append(n.instances, instance{n.address() + index(key), key, each})
}

// unknownKeys reports a for_each or count that is known only after apply, with
// what makes it so; nothing when that is an error reported elsewhere.
func (ev *evaluation) unknownKeys(n *node, attr *hclsyntax.Attribute, what string) {
	if n.tainted {
		return
	}
	sources := ev.unknownSources(n, attr, map[*node]bool{})
	because := ""
	if len(sources) > 0 {
		because = " It depends on " + strings.Join(sources, ", ") + "."
	}
	ev.fail(n.blame(), attr.Expr.Range().Ptr(), "Unknown "+what,
		"How many instances there are must be known before anything is made.%s Use a value that the files or variables give.", because)
}

// unknownSources names the exports that an expression of n reads and that are not
// known yet, through locals, variables and outputs of modules.
func (ev *evaluation) unknownSources(n *node, attr *hclsyntax.Attribute, seen map[*node]bool) []string {
	var out []string
	through := func(t *node, attr *hclsyntax.Attribute) {
		if attr == nil || seen[t] {
			return
		}
		seen[t] = true
		for _, source := range ev.unknownSources(t, attr, seen) {
			out = append(out, fmt.Sprintf("%s (through %s)", source, t.address()))
		}
	}
	for _, t := range hclsyntax.Variables(attr.Expr) {
		d := n.home.m.lookup(t.RootName(), attrName(t, 1))
		if d == nil || n.scope == nil {
			continue
		}
		v, diags := t.TraverseAbs(n.scope)
		if diags.HasErrors() || v.IsWhollyKnown() {
			continue
		}
		target := n.home.node(d)
		switch {
		case d.kind == "local":
			through(target, d.local)
		case d.kind == "var" && n.home.call != nil && n.home.call.inputs[d.name] != nil && !seen[target]:
			seen[target] = true
			in := n.home.parent.node(n.home.call.inputs[d.name])
			for _, source := range ev.unknownSources(in, in.local, seen) {
				out = append(out, fmt.Sprintf("%s (through %s)", source, target.address()))
			}
		case d.kind == "module":
			before := len(out)
			for _, in := range target.modules {
				for _, name := range outputNames(dependency{d, ""}) {
					o := in.node(in.m.lookup("output", name))
					if o.state == visited && o.value != cty.NilVal && !o.value.IsWhollyKnown() && len(out) < before+3 {
						through(o, o.attr("value"))
					}
				}
			}
		default:
			out = append(out, inModule(n.home.address, written(t)))
		}
	}
	return slices.Compact(out)
}
