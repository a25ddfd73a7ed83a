package plan

import (
	"slices"
	"strings"

	"pinfold/config"
)

// Narrow gives the part of an input that concerns one sandbox and what it refers
// to, for a second decision in the middle of an apply: what was unknown in the
// first is known now, and the rest of the world is other lanes' affair. Desired
// must be sorted by address, as config gives it.
func Narrow(in Input, address string) Input {
	out := in
	out.Options = Options{NoStart: in.Options.NoStart}
	for _, n := range in.Options.Replace {
		if names(n, address) {
			out.Options.Replace = append(out.Options.Replace, n)
		}
	}
	out.Records = Records{Lineage: in.Records.Lineage, Serial: in.Records.Serial,
		Sandboxes: only(in.Records.Sandboxes, address), Ended: only(in.Records.Ended, address)}
	refs := []string{}
	if rec := in.Records.Sandboxes[address]; rec != nil {
		refs = append(refs, references(&rec.Spec)...)
	}
	if in.Desired != nil {
		d := &config.Desired{Sandboxes: find(in.Desired.Sandboxes, address)}
		for i := range d.Sandboxes {
			refs = append(refs, references(&d.Sandboxes[i].Spec)...)
		}
		slices.Sort(refs)
		refs = slices.Compact(refs)
		for _, ref := range refs {
			d.Images = append(d.Images, find(in.Desired.Images, ref)...)
			d.Networks = append(d.Networks, find(in.Desired.Networks, ref)...)
			d.Volumes = append(d.Volumes, find(in.Desired.Volumes, ref)...)
		}
		out.Desired = d
	}
	out.Records.Images = only(in.Records.Images, refs...)
	out.Records.Networks = only(in.Records.Networks, refs...)
	out.Records.Volumes = only(in.Records.Volumes, refs...)
	out.Observed.Instances = map[string]Seen{}
	if rec := in.Records.Sandboxes[address]; rec != nil {
		for id, seen := range in.Observed.Instances {
			if (rec.UID != "" && seen.UID == rec.UID) || (rec.Instance != nil && rec.Instance.ID == id) {
				out.Observed.Instances[id] = seen
			}
		}
	}
	return out
}

func only[T any](m map[string]T, keys ...string) map[string]T {
	out := make(map[string]T, len(keys))
	for _, k := range keys {
		if v, ok := m[k]; ok {
			out[k] = v
		}
	}
	return out
}

// find gives the one resource with this address of a sorted list, or none.
func find[T any](rs []config.Resource[T], address string) []config.Resource[T] {
	i, ok := slices.BinarySearchFunc(rs, address, func(r config.Resource[T], a string) int { return strings.Compare(r.Address, a) })
	if !ok {
		return nil
	}
	return rs[i : i+1]
}
