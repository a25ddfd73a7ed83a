package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// Graph is what is declared and recorded, and what of it stands on what: one block for
// each block of the language, with its instances.
type Graph struct {
	Blocks []GraphBlock // sorted by module, kind and address
	Seen   bool         // phases are known
	Plan   bool         // actions are known
}

// GraphBlock is an image, network, volume or sandbox with all its instances.
type GraphBlock struct {
	Address string // without key
	Module  string // empty: the root
	Kind    string
	Name    string
	Needs   []int // blocks that it depends on, by index, sorted
	Nodes   []GraphNode
}

// GraphNode is one instance.
type GraphNode struct {
	Address  string
	State    string      // a sandbox's phase; of anything: declared, recorded, or (where phases are not known) empty
	Action   plan.Action // of the plan; empty: none
	Declared bool
	Facts    [][2]string // name and value, for people
}

// GraphOf puts together what the files declare (nil: no files), what is recorded and
// seen of it (nil: not known), and what a plan would do (nil: no plan).
func GraphOf(desired *config.Desired, recorded *reconcile.RecordsResult, seen []reconcile.SandboxView, p *plan.Plan, now time.Time) *Graph {
	b := &graphBuilder{nodes: map[string]*GraphNode{}, needs: map[string][]string{}, now: now}
	if desired == nil {
		desired = &config.Desired{}
	}
	b.declared(desired)
	if recorded != nil {
		b.recorded(&recorded.Records, seen)
	}
	if p != nil {
		b.planned(p)
	}
	g := &Graph{Blocks: b.blocks(), Seen: recorded != nil, Plan: p != nil}
	g.connect(b.needs)
	return g
}

type graphBuilder struct {
	nodes map[string]*GraphNode
	needs map[string][]string // addresses, of an instance or a whole block, by address
	now   time.Time
}

func (b *graphBuilder) node(address string) *GraphNode {
	n := b.nodes[address]
	if n == nil {
		n = &GraphNode{Address: address}
		b.nodes[address] = n
	}
	return n
}

func (n *GraphNode) fact(name, value string) {
	if value == "" {
		return
	}
	for i := range n.Facts {
		if n.Facts[i][0] == name {
			n.Facts[i][1] = value
			return
		}
	}
	n.Facts = append(n.Facts, [2]string{name, value})
}

func (b *graphBuilder) declared(d *config.Desired) {
	add := func(address string, needs []string) *GraphNode {
		n := b.node(address)
		n.Declared = true
		b.needs[address] = append(b.needs[address], needs...)
		return n
	}
	for _, r := range d.Images {
		add(r.Address, r.DependsOn).image(&r.Spec, r.Sensitive)
	}
	for _, r := range d.Networks {
		add(r.Address, r.DependsOn).network(&r.Spec, r.Sensitive)
	}
	for _, r := range d.Volumes {
		add(r.Address, r.DependsOn)
	}
	for _, r := range d.Sandboxes {
		add(r.Address, r.DependsOn).sandbox(&r.Spec, r.Sensitive)
	}
}

// told adds a fact about an attribute of a spec, unless that is sensitive.
func (n *GraphNode) told(path string, sensitive []string, value string) {
	secret := slices.ContainsFunc(sensitive, func(s string) bool {
		return s == path || strings.HasPrefix(s, path+"[") || strings.HasPrefix(s, path+".") || strings.HasPrefix(path, s+".")
	})
	if !secret {
		n.fact(strings.ReplaceAll(path[strings.LastIndex(path, ".")+1:], "_", " "), value)
	}
}

func (n *GraphNode) image(spec *config.Image, sensitive []string) {
	n.told("source", sensitive, spec.Source)
}

func (n *GraphNode) network(spec *config.Network, sensitive []string) {
	n.told("cidr", sensitive, spec.CIDR)
	if spec.Internet {
		n.told("internet", sensitive, "yes")
	}
}

func (n *GraphNode) sandbox(spec *config.Sandbox, sensitive []string) {
	n.told("image", sensitive, spec.Image)
	if spec.Network != nil {
		n.fact("network", spec.Network.Name)
	}
	if !spec.ShutdownTime.IsZero() {
		n.told("shutdown_time", sensitive, spec.ShutdownTime.UTC().Format(time.RFC3339))
	}
	if spec.Lifetime.TTL != 0 {
		n.told("lifetime.ttl", sensitive, spec.Lifetime.TTL.String())
	}
	n.told("command", sensitive, cut(oneLine(strings.Join(spec.Command, " ")), 120))
}

func (b *graphBuilder) recorded(r *plan.Records, seen []reconcile.SandboxView) {
	for _, n := range b.nodes {
		n.State = "declared" // and not made yet, unless it is found below
	}
	add := func(address string, needs []string) *GraphNode {
		n := b.node(address)
		n.State = "recorded"
		if !n.Declared {
			b.needs[address] = append(b.needs[address], needs...)
		}
		return n
	}
	for a, x := range r.Images {
		n := add(a, x.DependsOn)
		n.fact("digest", x.Digest)
	}
	for a, x := range r.Networks {
		n := add(a, x.DependsOn)
		if x.CIDR.IsValid() {
			n.fact("cidr", x.CIDR.String())
			n.fact("gateway", x.Gateway.String())
		}
	}
	for a, x := range r.Volumes {
		add(a, x.DependsOn).fact("id", x.ID)
	}
	views := map[string]*reconcile.SandboxView{}
	for i := range seen {
		views[seen[i].Address] = &seen[i]
	}
	for a, x := range r.Sandboxes {
		n := add(a, x.DependsOn)
		n.State = string(plan.Pending)
		if x.Instance != nil {
			n.State = string(x.Instance.Phase)
		}
		if v := views[a]; v != nil {
			n.seen(v, b.now)
		}
	}
}

// seen tells how a sandbox was found on the host.
func (n *GraphNode) seen(x *reconcile.SandboxView, now time.Time) {
	n.State = string(x.Phase)
	n.fact("mode", inForce(x)+declaredOf(x))
	if x.Hold != nil {
		n.fact("hold", x.Hold.Mode+" by "+x.Hold.By+" since "+instant(x.Hold.At, now))
	}
	switch {
	case x.EndedAt != nil && hasExpired(x):
		n.fact("deadline", "passed "+instant(*x.EndedAt, now))
	case x.ExpiresAt != nil:
		n.fact("deadline", instant(*x.ExpiresAt, now))
	default:
		n.fact("deadline", "none")
	}
	if x.InstanceID != nil {
		n.fact("instance", *x.InstanceID)
	}
	if x.PID != nil {
		n.fact("pid", fmt.Sprint(*x.PID))
	}
	if x.AddressV4 != nil {
		n.fact("address", *x.AddressV4)
	}
	if len(x.Ports) > 0 {
		n.fact("ports", portsOf(x.Ports))
	}
	if x.Outcome != nil && x.PID == nil {
		n.fact("outcome", outcomeOf(x.Outcome, now))
	}
	for _, c := range x.Conditions {
		text := c.Status + " (" + c.Reason + ")"
		if c.Message != "" {
			text += ": " + c.Message
		}
		n.fact(c.Type, text)
	}
}

// weight orders actions by what they cost, for a block whose instances have several.
var weight = map[plan.Action]int{
	plan.ActDelete: 9, plan.ActReplace: 8, plan.ActForget: 7, plan.ActExpire: 6, plan.ActRecreate: 5, plan.ActRestart: 4,
	plan.ActCreate: 3, plan.ActUpdate: 2, plan.ActNoop: 0,
}

func weightOf(a plan.Action) int {
	if w, known := weight[a]; known || a == "" {
		return w
	}
	return 1
}

func (b *graphBuilder) planned(p *plan.Plan) {
	for i := range p.Changes {
		c := &p.Changes[i]
		if c.Kind == "output" || c.Action == plan.ActNoop {
			continue
		}
		n := b.node(c.Address)
		if weightOf(c.Action) >= weightOf(n.Action) {
			n.Action = c.Action
		}
		n.fact("plan", string(c.Action)+": "+c.Cause)
	}
}

// blocks groups the instances.
func (b *graphBuilder) blocks() []GraphBlock {
	all := map[string]*GraphBlock{}
	for _, address := range slices.Sorted(maps.Keys(b.nodes)) {
		a, err := config.ParseAddress(address)
		if err != nil {
			continue // nothing that stands in a graph
		}
		whole := a.Whole()
		x := all[whole]
		if x == nil {
			x = &GraphBlock{Address: whole, Module: a.Module, Kind: a.Type, Name: a.Name}
			all[whole] = x
		}
		x.Nodes = append(x.Nodes, *b.nodes[address])
	}
	out := make([]GraphBlock, 0, len(all))
	for _, x := range all {
		slices.SortFunc(x.Nodes, func(a, b GraphNode) int {
			return byAddress(reconcile.SandboxView{Address: a.Address}, reconcile.SandboxView{Address: b.Address})
		})
		out = append(out, *x)
	}
	slices.SortFunc(out, func(a, b GraphBlock) int {
		return cmp.Or(cmp.Compare(a.Module, b.Module), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Address, b.Address))
	})
	return out
}

// connect turns addresses that are needed into blocks.
func (g *Graph) connect(needs map[string][]string) {
	index := make(map[string]int, len(g.Blocks))
	for i := range g.Blocks {
		index[g.Blocks[i].Address] = i
	}
	for i := range g.Blocks {
		set := map[int]bool{}
		for _, n := range g.Blocks[i].Nodes {
			for _, address := range needs[n.Address] {
				if a, err := config.ParseAddress(address); err == nil {
					if j, there := index[a.Whole()]; there && j != i {
						set[j] = true
					}
				}
			}
		}
		g.Blocks[i].Needs = slices.Sorted(maps.Keys(set))
	}
}

// action is the weightiest of a block's instances.
func (x *GraphBlock) action() (most plan.Action) {
	for _, n := range x.Nodes {
		if weightOf(n.Action) > weightOf(most) {
			most = n.Action
		}
	}
	return most
}

// tally counts the instances by a word of each, in the words' order.
func (x *GraphBlock) tally(word func(*GraphNode) string) (out []string) {
	counts := map[string]int{}
	for i := range x.Nodes {
		if w := word(&x.Nodes[i]); w != "" {
			counts[w]++
		}
	}
	for _, w := range slices.Sorted(maps.Keys(counts)) {
		if len(x.Nodes) > 1 {
			w = fmt.Sprintf("%d %s", counts[w], w)
		}
		out = append(out, w)
	}
	return out
}
