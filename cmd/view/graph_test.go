package view

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

func resource[T any](address string, spec T, needs ...string) config.Resource[T] {
	return config.Resource[T]{Address: address, Spec: spec, DependsOn: needs}
}

// graphDesired has modules, instances and names that mean something elsewhere.
func graphDesired() *config.Desired {
	box := config.Sandbox{Image: "image.base", Command: []string{"run", "</script><b>\"&"}}
	return &config.Desired{
		Images:   []config.Resource[config.Image]{resource("image.base", config.Image{Source: "host"})},
		Networks: []config.Resource[config.Network]{resource("network.n", config.Network{}), resource("module.ci.network.n", config.Network{Internet: true})},
		Volumes:  []config.Resource[config.Volume]{resource("volume.v", config.Volume{})},
		Sandboxes: []config.Resource[config.Sandbox]{
			resource("sandbox.db", box, "image.base", "network.n", "volume.v"),
			{
				Address: "sandbox.secret", Sensitive: []string{"command[1]", "lifetime", "shutdown_time"},
				Spec: config.Sandbox{Image: "image.base", Command: []string{"run", "s3cret"}, ShutdownTime: now, Lifetime: config.Lifetime{TTL: 3723e9}},
			},
			resource(`sandbox.w["a\"</script>"]`, box, "image.base", "sandbox.db"),
			resource(`sandbox.w["b"]`, box, "image.base", "sandbox.db"),
			resource(`module.ci["x"].module.inner.sandbox.r`, box, "image.base", "module.ci.network.n"),
			resource(`module.ci["x"].sandbox.s[0]`, box, "sandbox.w"),
			resource(`module.ci["x"].sandbox.s[1]`, box, "sandbox.w"),
		},
	}
}

func graphRecorded() (*reconcile.RecordsResult, []reconcile.SandboxView) {
	r := &reconcile.RecordsResult{Records: plan.Records{
		Sandboxes: map[string]*plan.Sandbox{
			"sandbox.db":   {Address: "sandbox.db", Instance: &plan.Instance{Phase: plan.Running}},
			"sandbox.gone": {Address: "sandbox.gone", DependsOn: []string{"network.n"}, Spec: config.Sandbox{Command: []string{"s3cret"}}},
		},
		Networks: map[string]*plan.Network{"network.n": {Address: "network.n", ID: "e061a335"}},
	}}
	return r, []reconcile.SandboxView{{
		Address: "sandbox.db", Phase: plan.Paused, Mode: "paused", DeclaredMode: "running", ExpiresAt: ptr(now.Add(3600e9)), InstanceID: ptr("05f77f0c63b6"),
		Conditions: []plan.Condition{{Type: "Ready", Status: "False", Reason: "Paused", Message: "<img src=http://x>"}},
	}}
}

func TestGraphOf(t *testing.T) {
	recorded, seen := graphRecorded()
	p := &plan.Plan{Changes: []plan.Change{
		{Address: "sandbox.gone", Kind: "sandbox", Action: plan.ActDelete, Cause: "no longer declared"},
		{Address: `sandbox.w["b"]`, Kind: "sandbox", Action: plan.ActCreate, Cause: "declared"},
		{Address: "output.x", Kind: "output", Action: plan.ActCreate},
	}}
	g := GraphOf(graphDesired(), recorded, seen, p, now)
	var got []string
	for _, x := range g.Blocks {
		line := x.Address + " <-"
		for _, j := range x.Needs {
			line += " " + g.Blocks[j].Address
		}
		for _, n := range x.Nodes {
			line += fmt.Sprintf("; %s %s %s", n.Address, n.State, n.Action)
		}
		got = append(got, line)
	}
	want := []string{
		"image.base <-; image.base declared ",
		"network.n <-; network.n recorded ",
		"sandbox.db <- image.base network.n volume.v; sandbox.db paused ",
		"sandbox.gone <- network.n; sandbox.gone pending delete",
		`sandbox.w <- image.base sandbox.db; sandbox.w["a\"</script>"] declared ; sandbox.w["b"] declared create`,
		"sandbox.secret <-; sandbox.secret declared ",
		"volume.v <-; volume.v declared ",
		"module.ci.network.n <-; module.ci.network.n declared ",
		`module.ci["x"].sandbox.s <- sandbox.w; module.ci["x"].sandbox.s[0] declared ; module.ci["x"].sandbox.s[1] declared `,
		`module.ci["x"].module.inner.sandbox.r <- image.base module.ci.network.n; module.ci["x"].module.inner.sandbox.r declared `,
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the graph is\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestDOT(t *testing.T) {
	recorded, seen := graphRecorded()
	p := &plan.Plan{Changes: []plan.Change{{Address: "sandbox.gone", Kind: "sandbox", Action: plan.ActDelete}, {Address: `sandbox.w["b"]`, Kind: "sandbox", Action: plan.ActCreate}}}
	for name, g := range map[string]*Graph{
		"graph.dot":      GraphOf(graphDesired(), recorded, seen, nil, now),
		"graph_plan.dot": GraphOf(graphDesired(), recorded, seen, p, now),
		"graph_none.dot": GraphOf(nil, nil, nil, nil, now),
	} {
		text := shown(false, 0, func(s *Screen) { s.DOT(g) })
		golden(t, name, text)
		nodes, edges, err := parseDOT(string(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		lines := 0
		for _, x := range g.Blocks {
			lines += len(x.Needs)
			if nodes[x.Address] != 1 {
				t.Errorf("%s: %s stands in it %d times", name, x.Address, nodes[x.Address])
			}
		}
		if len(nodes) != len(g.Blocks) || edges != lines {
			t.Errorf("%s: %d nodes and %d edges of %d and %d", name, len(nodes), edges, len(g.Blocks), lines)
		}
	}
}

var dotToken = regexp.MustCompile(`^\s*("(?:[^"\\]|\\.)*"|[A-Za-z_][A-Za-z0-9_]*|->|[{}\[\]=,])`)

// parseDOT reads the part of Graphviz's grammar that is written, strictly: nodes with
// how often they are declared, and edges, both ends of which must be nodes.
func parseDOT(text string) (nodes map[string]int, edges int, err error) {
	var tokens []string
	for rest := text; strings.TrimSpace(rest) != ""; {
		m := dotToken.FindStringSubmatch(rest)
		if m == nil {
			return nil, 0, fmt.Errorf("no token at %.40q", rest)
		}
		tokens, rest = append(tokens, m[1]), rest[len(m[0]):]
	}
	at := 0
	next := func() string {
		if at == len(tokens) {
			return ""
		}
		at++
		return tokens[at-1]
	}
	peek := func() string {
		if at == len(tokens) {
			return ""
		}
		return tokens[at]
	}
	want := func(tok string) {
		if got := next(); got != tok && err == nil {
			err = fmt.Errorf("%q stands where %q is needed", got, tok)
		}
	}
	unquote := func(s string) string {
		if !strings.HasPrefix(s, `"`) {
			return s
		}
		return strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(s[1 : len(s)-1])
	}
	nodes = map[string]int{}
	ends := map[string]bool{}
	attributes := func() {
		want("[")
		for err == nil && peek() != "]" {
			next()
			want("=")
			next()
			if peek() == "," {
				next()
			}
		}
		want("]")
	}
	var statements func()
	statements = func() {
		want("{")
		for err == nil && peek() != "}" && peek() != "" {
			switch id := next(); {
			case id == "subgraph":
				next()
				statements()
			case peek() == "=":
				next()
				next()
			case id == "node":
				attributes()
			case peek() == "->":
				next()
				ends[unquote(id)], ends[unquote(next())] = true, true
				edges++
			default:
				nodes[unquote(id)]++
				attributes()
			}
		}
		want("}")
	}
	want("digraph")
	next()
	statements()
	if err == nil && at != len(tokens) {
		err = fmt.Errorf("%q follows the graph", peek())
	}
	for end := range ends {
		if nodes[end] == 0 && err == nil {
			err = fmt.Errorf("an edge ends at %q, which is no node", end)
		}
	}
	return nodes, edges, err
}

func TestHTML(t *testing.T) {
	recorded, seen := graphRecorded()
	g := GraphOf(graphDesired(), recorded, seen, nil, now)
	page := string(shown(false, 0, func(s *Screen) { s.HTML(g, `dir <"x">`, now) }))
	for _, x := range g.Blocks {
		for _, n := range x.Nodes {
			if got := strings.Count(page, `<span class="address">`+escaped(n.Address)+"</span>"); got != 1 {
				t.Errorf("%s stands in the page %d times", n.Address, got)
			}
		}
	}
	// Nothing that a name holds is markup, and nothing is loaded.
	if n := strings.Count(page, "</script>"); n != 1 {
		t.Errorf("%d scripts end", n)
	}
	for _, bad := range []string{"<img", "<b>\"", "src=", "<link", "@import", "url(", "href", "s3cret", "1h2m3s", "shutdown time"} {
		if rest := strings.ReplaceAll(page, "&lt;img src=http://x&gt;", ""); strings.Contains(rest, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	outside := regexp.MustCompile(`[a-z]+://[^"'\s<]*`)
	for _, url := range outside.FindAllString(strings.ReplaceAll(page, "&lt;img src=http://x&gt;", ""), -1) {
		t.Errorf("the page names %s", url)
	}
	for _, want := range []string{
		`default-src &#39;none&#39;`, "prefers-color-scheme: dark", `<title>dir &lt;&#34;x&#34;&gt;</title>`, "2026-12-01T13:00:00Z (in 1h)", "recorded, and not in the files",
		`<span class="dot s-paused"></span>paused <b>1</b>`, "<dt>Ready</dt><dd>False (Paused): &lt;img src=http://x&gt;</dd>",
	} {
		if !strings.Contains(page, strings.ReplaceAll(want, "&#39;none&#39;", "'none'")) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if err := balanced(page); err != nil {
		t.Error(err)
	}
}

// balanced tells of the first tag that is not closed in order.
func balanced(page string) error {
	page = regexp.MustCompile(`(?s)<style>.*?</style>|<script>.*?</script>`).ReplaceAllString(page, "")
	var open []string
	for _, m := range regexp.MustCompile(`<(/?)([a-z0-9]+)[^>]*>`).FindAllStringSubmatch(page, -1) {
		switch {
		case m[2] == "meta" || m[2] == "input":
		case m[1] == "":
			open = append(open, m[2])
		case len(open) == 0 || open[len(open)-1] != m[2]:
			return fmt.Errorf("</%s> closes nothing; open are %v", m[2], open)
		default:
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("%v are not closed", open)
	}
	return nil
}

// What something needs lies in a layer before its own, wherever there is no circle.
func TestLayers(t *testing.T) {
	if got := layers(nil); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
	got := layers([][]int{{}, {0}, {0, 1}, {}, {2, 3}})
	if fmt.Sprint(got[1:]) != "[[1] [2] [4]]" || len(got[0]) != 2 {
		t.Errorf("layers %v", got)
	}
	// Two chains that a bad order would cross.
	got = layers([][]int{{}, {}, {1}, {0}})
	if crossings(got, [][]int{{}, {}, {1}, {0}}) != 0 {
		t.Errorf("lines cross in %v", got)
	}
	if got := layers([][]int{{1}, {0}, {2}}); len(got) != 2 && len(got) != 1 { // circles end
		t.Errorf("layers of circles %v", got)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		n := rng.IntN(40)
		needs := make([][]int, n)
		for i := range needs {
			for j := range i {
				if rng.IntN(6) == 0 {
					needs[i] = append(needs[i], j)
				}
			}
		}
		got := layers(needs)
		at, count := map[int]int{}, 0
		for l, list := range got {
			if len(list) == 0 {
				t.Fatalf("an empty layer in %v", got)
			}
			for _, b := range list {
				at[b] = l
				count++
			}
		}
		if count != n || len(at) != n {
			t.Fatalf("%d of %d blocks lie in %v", count, n, got)
		}
		for i, list := range needs {
			for _, j := range list {
				if at[j] >= at[i] {
					t.Fatalf("%d needs %d and lies in layer %d, that in %d", i, j, at[i], at[j])
				}
			}
		}
		if fmt.Sprint(layers(needs)) != fmt.Sprint(got) {
			t.Fatal("the same needs give other layers")
		}
	}
}

func TestCrossings(t *testing.T) {
	for _, tc := range []struct {
		layers [][]int
		needs  [][]int
		want   int
	}{
		{[][]int{{0, 1}, {2, 3}}, [][]int{{}, {}, {0}, {1}}, 0},
		{[][]int{{0, 1}, {3, 2}}, [][]int{{}, {}, {0}, {1}}, 1},
		{[][]int{{0, 1, 2}, {3, 4}}, [][]int{{}, {}, {}, {0, 1, 2}, {0, 1, 2}}, 3},
	} {
		if got := crossings(tc.layers, tc.needs); got != tc.want {
			t.Errorf("%v crosses %d times, not %d", tc.layers, got, tc.want)
		}
	}
}

// A page of a thousand sandboxes is of a size that a browser takes at once.
func TestPageOfMany(t *testing.T) {
	d := &config.Desired{Images: []config.Resource[config.Image]{resource("image.base", config.Image{Source: "host"})}}
	for i := range 1000 {
		d.Sandboxes = append(d.Sandboxes, resource(fmt.Sprintf("sandbox.w[%d]", i), config.Sandbox{Image: "image.base", Command: []string{"sleep"}}, "image.base"))
	}
	g := GraphOf(d, nil, nil, nil, now)
	page := shown(false, 0, func(s *Screen) { s.HTML(g, "many", now) })
	if n := strings.Count(string(page), `class="node"`); n != 1001 || len(page) > 1<<20 {
		t.Errorf("%d instances in %d bytes", n, len(page))
	}
	if len(g.Blocks) != 2 {
		t.Errorf("%d blocks", len(g.Blocks))
	}
}
