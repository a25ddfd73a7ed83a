package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"regexp"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

var settingsSchema = &schema{
	attrs: map[string]attrRule{
		"max_lifetime":       {},
		"max_destroy":        {},
		"allow_host_paths":   {},
		"address_pools":      {},
		"cgroup_parent":      {},
		"default_policies":   {literal: true},
		"expiry_warning":     {},
		"allow_privileged":   {later: "No sandbox can be privileged."},
		"allow_host_network": {later: "No sandbox can use the host's network."},
		"registries":         {later: no},
	},
	blocks: map[string]blockRule{
		"policy":     {label: "the policy's name", many: true, schema: policySchema},
		"registries": {many: true, later: no},
		"registry":   {label: "the registry's name", many: true, later: no},
	},
}

// DefaultSettings hold where there is no file: no host paths, networks out of
// 10.88.0.0/16, at most half of what exists deleted by one change, and a warning
// 15 minutes before a deadline.
func DefaultSettings() Settings {
	return Settings{MaxDestroy: 0.5, ExpiryWarning: Duration(15 * time.Minute), AddressPools: []string{"10.88.0.0/16"}, CgroupParent: "pinfold"}
}

// LoadSettings reads the host settings. A path where there is no file gives
// DefaultSettings. On errors the settings must not be used.
func LoadSettings(file string) (Settings, Diagnostics) {
	k := newSink()
	s := DefaultSettings()
	full, err := filepath.Abs(file)
	var src []byte
	if err == nil {
		src, err = readGiven(full)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		k.fail("", nil, "Cannot read the host settings", "File %s cannot be read: %s.", file, reason(err))
		return s, k.sorted()
	}
	s.File, s.Raw = full, src
	body := parseSettings(k, s)
	if body == nil {
		return s, k.sorted()
	}
	k.check("", body, settingsSchema, "the file of host settings")
	r := settingsReader{k, body}
	r.read(&s)

	// The policies are checked as far as they can be without a sandbox.
	ev := newEvaluation(&Source{}, s, nil, &disk{source: &Source{}})
	ev.sink = k
	ev.host = ev.readHostPolicies()
	for _, p := range ev.host.all {
		ev.checkPolicy(p)
	}
	return s, k.sorted()
}

func parseSettings(k *sink, s Settings) *hclsyntax.Body {
	parsed, diags := parseConfig(s.Raw, s.File)
	var body *hclsyntax.Body
	if parsed != nil {
		body, _ = parsed.Body.(*hclsyntax.Body)
	}
	k.source(s.File, s.Raw, body)
	k.addAll("", diags)
	if diags.HasErrors() {
		return nil
	}
	return body
}

// settingsReader decodes the settings' arguments, which are constants or use
// functions that read nothing.
type settingsReader struct {
	*sink
	body *hclsyntax.Body
}

func (r settingsReader) value(name string, ty cty.Type) (cty.Value, *hcl.Range, bool) {
	attr := r.body.Attributes[name]
	if attr == nil {
		return cty.NilVal, nil, false
	}
	rng := attr.Expr.Range().Ptr()
	b := newBudget()
	scope := b.constants()
	scope.Functions = b.meter(pureFunctions)
	v, diags := b.within(attr.Expr, scope)
	r.addAll("", diags)
	if diags.HasErrors() || v.IsNull() {
		return cty.NilVal, rng, false
	}
	v, _ = v.UnmarkDeep()
	out, err := convert.Convert(v, ty)
	if err != nil || !out.IsWhollyKnown() {
		r.fail("", rng, "Invalid value for "+name, "%s needed, not %s.", capital(article(ty.FriendlyName())), v.Type().FriendlyName())
		return cty.NilVal, rng, false
	}
	return out, rng, true
}

func (r settingsReader) texts(name string) ([]string, *hcl.Range, bool) {
	v, rng, ok := r.value(name, cty.List(cty.String))
	if !ok {
		return nil, rng, false
	}
	out := []string{}
	for it := v.ElementIterator(); it.Next(); {
		if _, e := it.Element(); !e.IsNull() {
			out = append(out, e.AsString())
		}
	}
	return out, rng, true
}

func (r settingsReader) read(s *Settings) {
	wrong := func(rng *hcl.Range, name, format string, args ...any) {
		r.fail("", rng, "Invalid value for "+name, format, args...)
	}
	if v, rng, ok := r.value("max_lifetime", cty.String); ok && v.AsString() != never {
		d, err := ParseDuration(v.AsString())
		switch {
		case err != nil:
			wrong(rng, "max_lifetime", "%s", sentence(err.Error()))
		case d <= 0:
			wrong(rng, "max_lifetime", "It must be longer than zero; leave it out, or write \"never\", for no cap.")
		}
		s.MaxLifetime = d
	}
	if v, rng, ok := r.value("expiry_warning", cty.String); ok {
		d, err := Duration(0), error(nil)
		if v.AsString() != never {
			d, err = ParseDuration(v.AsString())
		}
		switch {
		case err != nil:
			wrong(rng, "expiry_warning", "%s", sentence(err.Error()))
		case d <= 0 && v.AsString() != never:
			wrong(rng, "expiry_warning", "It must be longer than zero; write \"never\" for no warning.")
		}
		s.ExpiryWarning = d
	}
	if v, rng, ok := r.value("max_destroy", cty.Number); ok {
		share, _ := v.AsBigFloat().Float64()
		if share < 0 || share > 1 {
			wrong(rng, "max_destroy", "It is a share from 0 to 1, such as 0.5 for one half.")
		}
		s.MaxDestroy = share
	}
	if list, rng, ok := r.texts("allow_host_paths"); ok {
		for _, p := range list {
			if err := absolute(p); err != nil {
				wrong(rng, "allow_host_paths", "%s", sentence(err.Error()))
			}
		}
		s.AllowHostPaths = list
	}
	if list, rng, ok := r.texts("address_pools"); ok {
		s.AddressPools = list
		if err := checkPools(list); err != nil {
			wrong(rng, "address_pools", "%s", sentence(err.Error()))
		}
	}
	if v, rng, ok := r.value("cgroup_parent", cty.String); ok {
		s.CgroupParent = v.AsString()
		if !cgroupName.MatchString(s.CgroupParent) {
			wrong(rng, "cgroup_parent", "It is one plain name below the root of the hierarchy, such as \"pinfold\": letters, digits, dots, hyphens and underscores.")
		}
	}
}

// cgroupName is what a host takes as the name of its cgroup.
var cgroupName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

func checkPools(list []string) error {
	if len(list) == 0 {
		return errors.New("at least one range is needed, such as 10.88.0.0/16")
	}
	var seen []netip.Prefix
	for _, text := range list {
		p, err := parseRange(text, 8, 24)
		if err != nil {
			return err
		}
		for _, other := range seen {
			if other.Overlaps(p) {
				return fmt.Errorf("%s overlaps %s", p, other)
			}
		}
		seen = append(seen, p)
	}
	return nil
}

// hostPolicies are the policy blocks of the host settings, as layers.
type hostPolicies struct {
	all      []layer // by name
	defaults []layer // those that apply to every sandbox, in order
}

// readHostPolicies reads the policies in the settings' text. They can use
// neither variables nor references nor files: they hold for all configurations.
func (ev *evaluation) readHostPolicies() *hostPolicies {
	out := &hostPolicies{}
	if len(ev.settings.Raw) == 0 {
		return out
	}
	body := parseSettings(ev.sink, ev.settings)
	if body == nil {
		return out
	}
	m := &module{dir: ".", decls: map[string]map[string]*declaration{}}
	for _, b := range body.Blocks {
		if b.Type == "policy" && len(b.Labels) == 1 {
			d := &declaration{kind: "policy", name: b.Labels[0], m: m, block: b, rng: hcl.RangeBetween(b.TypeRange, b.LabelRanges[0])}
			ev.check("", b.Body, policySchema, d.title())
			m.add(ev.sink, d)
		}
	}
	m.order()
	m.resolve(ev.sink)
	names, home := m.names("policy"), ev.newInstance(m)
	scope := ev.budget.constants()
	scope.Functions = ev.budget.meter(pureFunctions)
	layers := map[string]layer{}
	for _, declared := range m.ordered {
		n := home.node(declared)
		for _, x := range n.exprs {
			for _, r := range x.refs {
				ev.fail("", r.rng.Ptr(), "Invalid reference", "A policy of the host settings holds constants; it cannot refer to other blocks.")
				x.bad = true
			}
			_ = hclsyntax.VisitAll(x.attr.Expr, func(part hclsyntax.Node) hcl.Diagnostics {
				if call, ok := part.(*hclsyntax.FunctionCallExpr); ok && diskFunctions[call.Name] {
					ev.fail("", call.NameRange.Ptr(), "Function out of place", "%s() reads files, and the host settings hold for configurations in any directory. Write the value out.", call.Name)
					x.bad = true
				}
				return nil
			})
		}
		n.scope, n.state = scope, visited
		layers[n.name] = ev.policyLayer(n)
		out.all = append(out.all, layers[n.name])
	}
	attr := body.Attributes["default_policies"]
	if attr == nil {
		return out
	}
	list, diags := hcl.ExprList(attr.Expr)
	if diags.HasErrors() {
		ev.fail("", attr.Expr.Range().Ptr(), "Invalid value for default_policies", "Write a list of references, such as default_policies = [policy.NAME].")
		return out
	}
	for _, item := range list {
		t, diags := hcl.AbsTraversalForExpr(item)
		if diags.HasErrors() || len(t) != 2 || t.RootName() != "policy" || attrName(t, 1) == "" {
			ev.fail("", item.Range().Ptr(), "Invalid value for default_policies", "Write references to policies of this file without quotes, such as default_policies = [policy.NAME].")
			continue
		}
		l, found := layers[attrName(t, 1)]
		if !found {
			ev.fail("", item.Range().Ptr(), "Reference to something undeclared", "There is no policy named %q in the host settings%s", attrName(t, 1), ended(didYouMean(attrName(t, 1), names)))
			continue
		}
		out.defaults = append(out.defaults, l)
	}
	return out
}
