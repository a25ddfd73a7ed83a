package view

import (
	"encoding/json"
	"io"
	"maps"
	"slices"
	"time"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// Resource is one recorded thing as `state list -json` tells of it.
type Resource struct {
	Address string     `json:"address"`
	Kind    string     `json:"kind"`            // sandbox, network, volume, image
	ID      *string    `json:"id"`              // instance, network or volume id, image digest; null: not made yet
	Phase   plan.Phase `json:"phase,omitempty"` // of a sandbox, as last seen
}

// ResourcesOf lists what is recorded, by kind and address.
func ResourcesOf(r *plan.Records) []Resource {
	var out []Resource
	for _, a := range slices.Sorted(maps.Keys(r.Images)) {
		out = append(out, Resource{Address: a, Kind: "image", ID: orNull(r.Images[a].Digest)})
	}
	for _, a := range slices.Sorted(maps.Keys(r.Networks)) {
		out = append(out, Resource{Address: a, Kind: "network", ID: orNull(r.Networks[a].ID)})
	}
	sandboxes := make([]Resource, 0, len(r.Sandboxes))
	for a, x := range r.Sandboxes {
		one := Resource{Address: a, Kind: "sandbox", Phase: plan.Pending}
		if x.Instance != nil {
			one.ID, one.Phase = orNull(x.Instance.ID), x.Instance.Phase
		}
		sandboxes = append(sandboxes, one)
	}
	slices.SortFunc(sandboxes, func(a, b Resource) int {
		return byAddress(reconcile.SandboxView{Address: a.Address}, reconcile.SandboxView{Address: b.Address})
	})
	out = append(out, sandboxes...)
	for _, a := range slices.Sorted(maps.Keys(r.Volumes)) {
		out = append(out, Resource{Address: a, Kind: "volume", ID: orNull(r.Volumes[a].ID)})
	}
	return out
}

// Resources writes one address a line, for other programs to take.
func (s *Screen) Resources(all []Resource) {
	for _, x := range all {
		s.Linef("%s\n", printable(x.Address))
	}
}

// ResourcesDocument is `state list -json`.
type ResourcesDocument struct {
	FormatVersion string     `json:"format_version"`
	Lineage       string     `json:"lineage"`
	Serial        uint64     `json:"serial"`
	Resources     []Resource `json:"resources"`
}

// ResourcesJSON writes `state list -json`.
func ResourcesJSON(w io.Writer, r *plan.Records, all []Resource) error {
	return JSON(w, ResourcesDocument{FormatVersion, r.Lineage, r.Serial, list(all)})
}

// RecordDocument is `state show -json`: what is recorded of one thing.
type RecordDocument struct {
	FormatVersion string           `json:"format_version"`
	Lineage       string           `json:"lineage"`
	Serial        uint64           `json:"serial"`
	Address       string           `json:"address"`
	Kind          string           `json:"kind"`
	ID            *string          `json:"id"`
	Spec          json.RawMessage  `json:"spec"`      // as declared, what is sensitive left out
	Sensitive     []string         `json:"sensitive"` // paths of the spec that are left out
	DependsOn     []string         `json:"depends_on"`
	Lifecycle     config.Lifecycle `json:"lifecycle"`
	Exports       config.Export    `json:"exports"` // what expressions read of it
	Sandbox       *sandboxRecord   `json:"sandbox"` // null for other kinds
}

// sandboxRecord is what is recorded of a sandbox beside its spec.
type sandboxRecord struct {
	UID          string               `json:"uid"`
	Generation   int64                `json:"generation"`
	Phase        plan.Phase           `json:"phase"`
	CreatedAt    time.Time            `json:"created_at"`
	LastActivity *time.Time           `json:"last_activity"`
	Lease        leaseJSON            `json:"lease"`
	Hold         *holdJSON            `json:"hold"`
	Restarts     retryJSON            `json:"restarts"`
	IDs          plan.IDRange         `json:"ids"`
	AddressV4    *string              `json:"address_v4"`
	Ports        map[string]plan.Port `json:"ports"`
	Claims       map[string]string    `json:"claims"` // volume id by claim
	Instance     *instanceRecord      `json:"instance"`
	Conditions   []conditionJSON      `json:"conditions"`
}

type instanceRecord struct {
	ID         string       `json:"id"`
	PID        *int         `json:"pid"`
	Image      *string      `json:"image"` // digest of the image it was made from
	CreatedAt  time.Time    `json:"created_at"`
	StartedAt  *time.Time   `json:"started_at"`
	StoppedBy  *string      `json:"stopped_by"`
	FailReason *string      `json:"fail_reason"`
	Outcome    *outcomeJSON `json:"outcome"`
}

// RecordOf is the record of an address; false when there is none.
func RecordOf(r *reconcile.RecordsResult, address string) (*RecordDocument, bool) {
	d := &RecordDocument{FormatVersion: FormatVersion, Lineage: r.Records.Lineage, Serial: r.Records.Serial, Address: address, Exports: r.Exports[address]}
	fill := func(kind, id string, spec any, dependsOn []string, life config.Lifecycle, sensitive []string) {
		d.Kind, d.ID, d.Spec, d.DependsOn, d.Lifecycle, d.Sensitive = kind, orNull(id), redactedSpec(spec, sensitive), list(dependsOn), life, list(sensitive)
	}
	if x := r.Records.Images[address]; x != nil {
		fill("image", x.Digest, x.Spec, x.DependsOn, x.Lifecycle, nil)
		return d, true
	}
	if x := r.Records.Networks[address]; x != nil {
		fill("network", x.ID, x.Spec, x.DependsOn, x.Lifecycle, nil)
		return d, true
	}
	if x := r.Records.Volumes[address]; x != nil {
		fill("volume", x.ID, x.Spec, x.DependsOn, x.Lifecycle, nil)
		return d, true
	}
	x := r.Records.Sandboxes[address]
	if x == nil {
		return nil, false
	}
	id := ""
	if x.Instance != nil {
		id = x.Instance.ID
	}
	fill("sandbox", id, x.Spec, x.DependsOn, x.Lifecycle, x.Sensitive)
	d.Sandbox = sandboxRecordOf(x)
	return d, true
}

func sandboxRecordOf(x *plan.Sandbox) *sandboxRecord {
	r := &sandboxRecord{
		UID: x.UID, Generation: x.Generation, Phase: plan.Pending, CreatedAt: x.CreatedAt, LastActivity: orNull(x.LastActivity),
		Lease: leaseOf(x.Lease), Hold: holdOf(x.Hold), Restarts: retryOf(x.Restarts), IDs: x.IDs,
		Ports: dict(x.Ports), Claims: dict(x.Claim), Conditions: conditionsOf(x.Conditions),
	}
	if x.Net != nil {
		r.AddressV4 = orNull(x.Net.Address.String())
	}
	if i := x.Instance; i != nil {
		r.Phase = i.Phase
		r.Instance = &instanceRecord{
			ID: i.ID, PID: orNull(i.PID), Image: orNull(i.Image), CreatedAt: i.CreatedAt, StartedAt: orNull(i.StartedAt),
			StoppedBy: orNull(i.StoppedBy), FailReason: orNull(i.FailReason), Outcome: outcomeJSONOf(i.Outcome),
		}
	}
	return r
}

// RecordJSON writes `state show -json`.
func RecordJSON(w io.Writer, d *RecordDocument) error { return JSON(w, d) }

// Record writes what is recorded of one thing as a block of the language has it:
// first what was recorded beside the spec, then the spec.
func (s *Screen) Record(d *RecordDocument) {
	address, err := config.ParseAddress(d.Address)
	if err != nil {
		address.Name = d.Address
	}
	s.Linef("%s\n", s.paint(bold, "# "+printable(d.Address)+":"))
	s.Linef("%s %s {\n", d.Kind, quote(address.Name))
	s.members(recordedMembers(d))
	if spec, ok := decode(d.Spec).(map[string]any); ok && len(spec) > 0 {
		s.Linef("\n")
		s.members(spec)
	}
	s.Linef("}\n")
}

// recordedMembers are those of a record beside its spec that say something.
func recordedMembers(d *RecordDocument) map[string]any {
	raw, err := json.Marshal(d.Exports)
	if err != nil {
		return nil
	}
	all, _ := decode(raw).(map[string]any)
	if all == nil {
		all = map[string]any{}
	}
	if d.ID != nil && d.Kind != "image" && d.Kind != "sandbox" { // theirs are among the exports
		all["id"] = *d.ID
	}
	if len(d.DependsOn) > 0 {
		all["depends_on"] = texts(d.DependsOn)
	}
	if raw, err := json.Marshal(d.Lifecycle); err == nil && string(raw) != "{}" {
		all["lifecycle"] = decode(raw)
	}
	x := d.Sandbox
	if x == nil {
		return all
	}
	delete(all, "ports")
	all["uid"], all["generation"], all["phase"], all["created_at"] = x.UID, x.Generation, string(x.Phase), stamp(&x.CreatedAt)
	if len(x.Ports) > 0 {
		ports := map[string]any{}
		for name, p := range x.Ports {
			ports[name] = portOf(p)
		}
		all["ports"] = ports
	}
	if x.Hold != nil {
		all["hold"] = map[string]any{"mode": x.Hold.Mode, "by": x.Hold.By, "at": stamp(&x.Hold.At)}
	}
	if x.Lease.Until != nil {
		all["lease_until"] = stamp(x.Lease.Until)
	}
	if len(x.Claims) > 0 {
		claims := map[string]any{}
		for name, id := range x.Claims {
			claims[name] = id
		}
		all["claims"] = claims
	}
	if i := x.Instance; i != nil {
		if i.PID != nil {
			all["pid"] = *i.PID
		}
		if i.StartedAt != nil {
			all["started_at"] = stamp(i.StartedAt)
		}
		if i.Outcome != nil {
			all["outcome"] = i.Outcome.Reason + ", " + outcomeWords(&i.Outcome.Outcome)
		}
	}
	return all
}

func texts(all []string) []any {
	out := make([]any, len(all))
	for i, x := range all {
		out[i] = x
	}
	return out
}

// members writes name = value, aligned, in the order of their names.
func (s *Screen) members(all map[string]any) {
	names := slices.Sorted(maps.Keys(all))
	width := 0
	for _, name := range names {
		width = max(width, columns(key(name)))
	}
	for _, name := range names {
		text := literal(all[name], 2)
		s.Linef("  %s = %s\n", pad(key(name), width), text)
	}
}
