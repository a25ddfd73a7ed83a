package config

import (
	"cmp"
	"fmt"
	"maps"
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

// Check reports what is wrong with the configuration whatever values its variables
// will have: one that is not set and has no default is unknown, of its type.
func (s *Source) Check(set Settings) Diagnostics {
	ev := newEvaluation(s, set, nil, &disk{source: s, valueless: true})
	ev.valueless = true
	ev.run()
	return ev.sorted()
}

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
	m         *module
	host      *hostPolicies
	known     map[string]string // kind of each resource instance, by address
	ranges    []rangeUse
	ports     []portUse
	hosts     []hostUse
	out       Desired
}

func newEvaluation(s *Source, set Settings, ex Exports, d *disk) *evaluation {
	b := newBudget()
	return &evaluation{sink: newSink(), src: s, settings: set, exports: ex, functions: functions(d, b), budget: b, known: map[string]string{}}
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
	ev.m = collect(ev.sink, files)
	ev.m.resolve(ev.sink)
	ev.host = ev.readHostPolicies()
	ev.variables()
	for _, n := range ev.m.ordered {
		ev.visit(n, nil)
	}
	ev.crossCheck()
	slices.SortFunc(ev.out.Images, byAddress[Image])
	slices.SortFunc(ev.out.Networks, byAddress[Network])
	slices.SortFunc(ev.out.Volumes, byAddress[Volume])
	slices.SortFunc(ev.out.Sandboxes, byAddress[Sandbox])
	slices.SortFunc(ev.out.Outputs, func(a, b Output) int { return cmp.Compare(a.Name, b.Name) })
	return &ev.out
}

func byAddress[T any](a, b Resource[T]) int { return cmp.Compare(a.Address, b.Address) }

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
	for _, dep := range n.deps {
		ev.visit(dep, append(chain, n))
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
	case "local":
		ev.local(n)
	case "policy":
		n.value = cty.ObjectVal(map[string]cty.Value{"id": cty.StringVal(n.address())})
		ev.checkPolicy(layer{n: n, scope: n.scope, policy: n.address()})
	case "output":
		ev.output(n)
	default:
		ev.resource(n)
	}
	if n.broken {
		n.value = cty.DynamicVal
	}
}

// cycle reports a chain of references that ends where it began.
func (ev *evaluation) cycle(chain []*node) {
	var words []string
	for _, n := range chain {
		n.broken = true
		words = append(words, n.address())
	}
	first := chain[0]
	if len(chain) == 2 {
		ev.fail(first.blame(), first.rng.Ptr(), "Reference to itself", "%s refers to itself. Put what both sides need into locals.", capital(first.title()))
		return
	}
	ev.fail(first.blame(), first.rng.Ptr(), "Cycle of references", "None of these can come first: %s. Break the chain at one place, for example by putting the shared value into locals.", strings.Join(words, " → "))
}

// scopeOf makes the context that n's expressions are evaluated in: just what
// they refer to, so that the cost does not grow with the whole configuration.
func (ev *evaluation) scopeOf(n *node) {
	groups := map[string]map[string]cty.Value{}
	for _, dep := range n.deps {
		if groups[dep.kind] == nil {
			groups[dep.kind] = map[string]cty.Value{}
		}
		groups[dep.kind][dep.name] = dep.value
	}
	vars := map[string]cty.Value{
		"path":     cty.ObjectVal(map[string]cty.Value{"module": cty.StringVal("."), "root": cty.StringVal(".")}),
		budgetName: ev.budget.value(),
	}
	for kind, group := range groups {
		vars[kind] = cty.ObjectVal(group)
	}
	n.scope = &hcl.EvalContext{Variables: vars, Functions: ev.functions}
}

// needsOf collects the resources n depends on, other than through references
// whose key is computed per instance.
func (ev *evaluation) needsOf(n *node) {
	set := map[string]bool{}
	add := func(r reference) {
		if !r.target.isResource() {
			for _, address := range r.target.needs {
				set[address] = true
			}
			return
		}
		for _, address := range r.addresses(n.scope) {
			set[address] = true
		}
	}
	for _, x := range n.exprs {
		for _, r := range x.refs {
			if r.index == nil || !x.perInstance {
				add(r)
			} else if r.target.isResource() {
				n.computed = append(n.computed, r)
			}
		}
	}
	for _, r := range n.explicit {
		add(r)
	}
	n.needs = slices.Sorted(maps.Keys(set))
}

// addresses are the instances that a reference to a resource may read: the one
// that its key names, or all.
func (r reference) addresses(scope *hcl.EvalContext) []string {
	t := r.target
	if !t.repeated() {
		if t.broken {
			return nil
		}
		return []string{t.address()}
	}
	key := r.key
	if r.index != nil {
		// A key that uses the variable of a for expression cannot be known here.
		if v, diags := r.index.Value(scope); !diags.HasErrors() {
			if computed, err := keyOf(v); err == nil {
				key = computed
			}
		}
	}
	if key != nil {
		if address, ok := t.byKey[key]; ok {
			return []string{address}
		}
	}
	out := make([]string, len(t.instances))
	for i, in := range t.instances {
		out[i] = in.address
	}
	return out
}

// checkPolicy reports what is wrong with a policy, whether it is used or not.
func (ev *evaluation) checkPolicy(l layer) {
	var spec Sandbox
	ev.decoder(l.n, &instance{each: l.scope}).rules(l, l.n.block.Body, &spec)
}

func (ev *evaluation) local(n *node) {
	v, ok := ev.value(n, n.local, n.scope, "")
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
	x := n.exprs[attr]
	if x == nil || x.bad {
		return cty.NilVal, false
	}
	if x.done {
		return x.value, !x.failed
	}
	v, diags := ev.budget.within(attr.Expr, scope)
	if !ev.budget.told { // once is enough: everything fails from then on
		for _, diag := range diags {
			ev.add(address, x.explain(diag))
		}
		ev.budget.told = ev.budget.over()
	}
	if !x.perInstance {
		x.done, x.value, x.failed = true, v, diags.HasErrors()
	}
	return v, !diags.HasErrors()
}

// explain says which keys there are when one does not exist.
func (x *expression) explain(d *hcl.Diagnostic) *hcl.Diagnostic {
	if d.Summary != "Invalid index" || d.Subject == nil {
		return d
	}
	for _, r := range x.refs {
		if r.key == nil || r.target.byKey == nil || !r.rng.Overlaps(*d.Subject) {
			continue
		}
		if _, found := r.target.byKey[r.key]; found {
			continue
		}
		hint := "It has no instances."
		if text, ok := r.key.(string); ok && len(r.target.instances) > 0 {
			var keys []string
			for _, in := range r.target.instances {
				keys = append(keys, fmt.Sprint(in.key))
			}
			shown := quoteAll(keys[:min(len(keys), 5)])
			hint = "Its keys are " + strings.Join(shown, ", ")
			if len(keys) > 5 {
				hint += fmt.Sprintf(" and %d more", len(keys)-5)
			}
			hint += ended(didYouMean(text, keys))
		} else if len(r.target.instances) > 0 {
			hint = fmt.Sprintf("Its keys go from 0 to %d.", len(r.target.instances)-1)
		}
		explained := *d
		explained.Summary = "No such instance"
		explained.Detail = fmt.Sprintf("%s does not exist. %s", Address{Type: r.target.kind, Name: r.target.name, Key: r.key}, hint)
		return &explained
	}
	return d
}

// resource expands a block to its instances and decodes each.
func (ev *evaluation) resource(n *node) {
	if !ev.expand(n) {
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
		ev.fail(n.address(), count.NameRange.Ptr(), "Both for_each and count", "A block has for_each or count, not both.")
		return false
	case forEach != nil:
		return ev.expandForEach(n, forEach)
	case count != nil:
		return ev.expandCount(n, count)
	}
	n.instances = []instance{{address: n.address(), each: n.scope}}
	return true
}

func (ev *evaluation) expandForEach(n *node, attr *hclsyntax.Attribute) bool {
	v, ok := ev.value(n, attr, n.scope, n.address())
	if !ok {
		return false
	}
	rng := attr.Expr.Range().Ptr()
	ty := v.Type()
	switch {
	case v.IsNull():
		ev.fail(n.address(), rng, "Invalid for_each", "The value is null. Use an empty map or set for no instances.")
		return false
	case !v.IsKnown() || ty.IsSetType() && !v.IsWhollyKnown():
		ev.unknownKeys(n, attr, "for_each")
		return false
	case ty.IsListType() || ty.IsTupleType():
		ev.fail(n.address(), rng, "Invalid for_each", "A list has no keys to tell instances apart by. Write toset([…]) if the elements are different strings, or { for x in list : key => x }.")
		return false
	case !ty.IsMapType() && !ty.IsObjectType() && !(ty.IsSetType() && (ty.ElementType() == cty.String || v.LengthInt() == 0)):
		ev.fail(n.address(), rng, "Invalid for_each", "A map, an object or a set of strings is needed, not %s.", ty.FriendlyName())
		return false
	case v.LengthInt() > maxInstances:
		ev.fail(n.address(), rng, "Invalid for_each", "It has %d elements; a block has at most %d instances.", v.LengthInt(), maxInstances)
		return false
	}
	ev.allow(v.LengthInt())
	n.byKey = make(map[any]string, v.LengthInt())
	valid := true
	for it := v.ElementIterator(); it.Next(); {
		key, value := it.Element()
		if key.IsNull() {
			ev.fail(n.address(), rng, "Invalid for_each", "The set has a null element.")
			return false
		}
		k := key.AsString()
		if k == "" || len(k) > 256 || strings.ContainsFunc(k, func(r rune) bool { return !unicode.IsPrint(r) }) {
			ev.fail(n.address(), rng, "Invalid for_each", "%q cannot be a key: use 1 to 256 bytes of printable text.", k)
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
	v, ok := ev.value(n, attr, n.scope, n.address())
	if !ok {
		return false
	}
	rng := attr.Expr.Range().Ptr()
	number, err := convert.Convert(v, cty.Number)
	switch {
	case err != nil || v.IsNull():
		ev.fail(n.address(), rng, "Invalid count", "A whole number from 0 on is needed.")
		return false
	case !number.IsKnown():
		ev.unknownKeys(n, attr, "count")
		return false
	}
	total, accuracy := number.AsBigFloat().Int64()
	if accuracy != 0 || total < 0 || total > maxInstances {
		ev.fail(n.address(), rng, "Invalid count", "A whole number from 0 to %d is needed, not %s.", maxInstances, number.AsBigFloat().Text('g', 10))
		return false
	}
	ev.allow(int(total))
	n.byKey = make(map[any]string, total)
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
	address := Address{Type: n.kind, Name: n.name, Key: key}.String()
	n.byKey[key] = address
	n.instances = append(n.instances, instance{address, key, each})
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
	ev.fail(n.address(), attr.Expr.Range().Ptr(), "Unknown "+what,
		"How many instances there are must be known before anything is made.%s Use a value that the files or variables give.", because)
}

// unknownSources names the exports that an expression reads and that are not
// known yet, through locals.
func (ev *evaluation) unknownSources(n *node, attr *hclsyntax.Attribute, seen map[*node]bool) []string {
	var out []string
	for _, t := range hclsyntax.Variables(attr.Expr) {
		target := ev.m.lookup(t.RootName(), attrName(t, 1))
		if target == nil || seen[target] && target.local != nil {
			continue
		}
		v, diags := t.TraverseAbs(n.scope)
		if diags.HasErrors() || v.IsWhollyKnown() {
			continue
		}
		if target.local != nil {
			seen[target] = true
			for _, source := range ev.unknownSources(target, target.local, seen) {
				out = append(out, fmt.Sprintf("%s (through local.%s)", source, target.name))
			}
			continue
		}
		out = append(out, written(t))
	}
	return slices.Compact(out)
}
