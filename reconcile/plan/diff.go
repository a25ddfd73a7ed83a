package plan

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"pinfold/config"
)

// difference is a Diff with what it costs.
type difference struct {
	Diff
	class Class
}

// encode gives v's JSON. The types encoded here are plain data, which cannot fail.
func encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return json.RawMessage("null")
	}
	return json.RawMessage(bytes.TrimRight(b.Bytes(), "\n"))
}

// members decodes a JSON object one level deep; nil when raw is none.
func members(raw json.RawMessage) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if len(raw) == 0 || raw[0] != '{' || json.Unmarshal(raw, &m) != nil {
		return nil
	}
	return m
}

// compare lists the leaf differences of two JSON objects by path, sorted. Lists
// are leaves. So is an entry of a block that exists on one side only
// (port.http), but a block's absence itself is the same as an empty block.
func compare(before, after json.RawMessage) []difference {
	var out []difference
	compareAt("", 0, members(before), members(after), &out)
	return out
}

func compareAt(prefix string, depth int, before, after map[string]json.RawMessage, out *[]difference) {
	keys := make([]string, 0, len(before)+len(after))
	for k := range before {
		keys = append(keys, k)
	}
	for k := range after {
		if _, both := before[k]; !both {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		b, a := before[k], after[k]
		if bytes.Equal(b, a) {
			continue
		}
		path := config.Step(prefix, k)
		mb, ma := members(b), members(a)
		blockAbsent := depth == 0 && k != "network" && (mb == nil) != (ma == nil) && (b == nil || a == nil)
		if (mb != nil && ma != nil) || blockAbsent {
			compareAt(path, depth+1, mb, ma, out)
			continue
		}
		*out = append(*out, difference{Diff: Diff{Path: path, Before: b, After: a}, class: ClassOf(path)})
	}
}

// diffSandbox lists what differs between a recorded and a declared sandbox.
func diffSandbox(rec *config.Sandbox, want *config.Sandbox) []difference {
	if sameSandbox(rec, want) {
		return nil
	}
	return compare(encode(rec), encode(want))
}

func diffLifecycle(rec, want config.Lifecycle) []difference {
	if sameLifecycle(rec, want) {
		return nil
	}
	ds := compare(encode(rec), encode(want))
	for i := range ds {
		ds[i].Path = "lifecycle." + ds[i].Path
		ds[i].class = InPlace
	}
	return ds
}

// markUnknown turns differences at unknown paths into "known after apply", and
// adds those that would not show because the recorded value is empty too. With
// keep false such values cannot become known in this plan: the recorded ones stand.
func markUnknown(ds []difference, unknown []string, keep bool) []difference {
	if len(unknown) == 0 {
		return ds
	}
	var out []difference
	seen := map[string]bool{}
	for _, d := range ds {
		i := slices.IndexFunc(unknown, func(u string) bool { return covers(u, d.Path) || covers(d.Path, u) })
		if i < 0 {
			out = append(out, d)
			continue
		}
		for _, u := range unknown {
			if covers(u, d.Path) || covers(d.Path, u) {
				seen[u] = true
			}
		}
		if keep {
			d.Unknown, d.After = true, nil
			if d.class == Refused {
				d.class = InPlace // refused when it is known and differs
			}
			out = append(out, d)
		}
	}
	if keep {
		for _, u := range unknown {
			if !seen[u] {
				out = append(out, difference{Diff: Diff{Path: u, Unknown: true}, class: min(ClassOf(u), Replace)})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b difference) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// covers reports whether path is at or below the attribute root.
func covers(root, path string) bool {
	if !strings.HasPrefix(path, root) {
		return false
	}
	return len(path) == len(root) || path[len(root)] == '.' || path[len(root)] == '['
}

// withoutUnknown removes the unknown values from a spec's JSON; an unknown
// element of a list becomes null.
func withoutUnknown(spec json.RawMessage, unknown []string) json.RawMessage {
	if len(unknown) == 0 {
		return spec
	}
	var m map[string]any
	d := json.NewDecoder(bytes.NewReader(spec))
	d.UseNumber()
	if d.Decode(&m) != nil {
		return spec
	}
	for _, u := range unknown {
		remove(m, u)
	}
	return encode(m)
}

// remove deletes the value at path; an element of a list becomes null.
func remove(m map[string]any, path string) {
	steps := config.Steps(path)
	if len(steps) == 0 {
		return
	}
	var at any = m
	last := steps[len(steps)-1]
	for _, s := range steps[:len(steps)-1] {
		switch v := at.(type) {
		case map[string]any:
			key, _ := s.(string)
			at = v[key]
		case []any:
			i, ok := s.(int)
			if !ok || i >= len(v) {
				return
			}
			at = v[i]
		default:
			return
		}
	}
	switch v := at.(type) {
	case map[string]any:
		if key, ok := last.(string); ok {
			delete(v, key)
		}
	case []any:
		if i, ok := last.(int); ok && i < len(v) {
			v[i] = nil
		}
	}
}

// specFields finds a field of config.Sandbox by its attribute name.
var specFields = func() map[string]int {
	m := map[string]int{}
	t := reflect.TypeFor[config.Sandbox]()
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		m[name] = i
	}
	return m
}()

// ignore gives want with the recorded values of the attributes named by
// lifecycle.ignore_changes ("all" names every one), and unknown without them.
func ignore(rec, want *config.Sandbox, names, unknown []string) (*config.Sandbox, []string) {
	if len(names) == 0 {
		return want, unknown
	}
	if slices.Contains(names, "all") {
		return rec, nil
	}
	merged := *want
	to, from := reflect.ValueOf(&merged).Elem(), reflect.ValueOf(rec).Elem()
	for _, n := range names {
		if i, ok := specFields[n]; ok {
			to.Field(i).Set(from.Field(i))
		}
		unknown = slices.DeleteFunc(slices.Clone(unknown), func(u string) bool { return covers(n, u) })
	}
	return &merged, unknown
}

// decided gives want with recorded values where those that decide over life and
// death are not known yet.
func decided(rec, want *config.Sandbox, unknown []string) *config.Sandbox {
	w := *want
	for _, u := range unknown {
		switch u {
		case "operating_mode":
			w.OperatingMode = rec.OperatingMode
		case "shutdown_time":
			w.ShutdownTime = rec.ShutdownTime
		case "shutdown_policy":
			w.ShutdownPolicy = rec.ShutdownPolicy
		case "lifetime":
			w.Lifetime = rec.Lifetime
		case "lifetime.ttl":
			w.Lifetime.TTL = rec.Lifetime.TTL
		case "lifetime.on_lost":
			w.Lifetime.OnLost = rec.Lifetime.OnLost
		case "image":
			w.Image = rec.Image
		case "network", "network.name":
			w.Network = rec.Network
		}
	}
	return &w
}

// changedNames words a list of differences: "shutdown_time, lifetime.ttl changed".
func changedNames(ds []difference) string {
	var names []string
	for _, d := range ds {
		first, rest, nested := strings.Cut(d.Path, ".")
		first, _, _ = strings.Cut(first, "[")
		if nested && (first == "lifetime" || first == "resources" || first == "security" || first == "lifecycle") {
			first += "." + rest
		}
		if !slices.Contains(names, first) {
			names = append(names, first)
		}
	}
	if len(names) > 3 {
		names = append(names[:3], "...")
	}
	return strings.Join(names, ", ") + " changed"
}
