package view

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// FormatVersion is the version of every JSON document printed here. It changes
// only when a reader of the old form would go wrong.
const FormatVersion = "1"

// JSON writes v as one indented document with a line break at its end. HTML
// characters are not escaped: the reader is no browser.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("cannot write JSON: %w", err)
	}
	return nil
}

// JSONLine writes a document that is one of several, each on a line of its own.
func JSONLine(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("cannot write JSON: %w", err)
	}
	return nil
}

// planChange is one element of `plan -json`'s changes: what most readers want,
// then what else one may need. Absent things are null.
type planChange struct {
	Address      string          `json:"address"`
	Action       plan.Action     `json:"action"`
	Cause        string          `json:"cause"`
	Consequence  string          `json:"consequence"`
	Before       json.RawMessage `json:"before"`
	After        json.RawMessage `json:"after"`
	ReplacePaths []string        `json:"replace_paths"`

	PreviousAddress *string `json:"previous_address"` // of a move
	ID              *string `json:"id"`               // of an import: of the instance, network or volume

	Kind      string      `json:"kind"`
	Origin    plan.Origin `json:"origin"`
	Unknown   []string    `json:"unknown"`
	Sensitive []string    `json:"sensitive"` // paths whose values are not told
	DependsOn []string    `json:"depends_on"`
	Notes     []string    `json:"notes"`
	Volumes   []string    `json:"volumes"`
	Missing   []string    `json:"missing"`

	CreateBeforeDestroy bool    `json:"create_before_destroy"` // of a replace
	Deposed             *string `json:"deposed"`               // of a delete: the instance beside the sandbox's own that goes
}

// planDocument is `plan -json` and `show -json PLANFILE`.
type planDocument struct {
	FormatVersion string             `json:"format_version"`
	Changes       []planChange       `json:"changes"`
	Drift         []plan.Drift       `json:"drift"`
	Notes         []string           `json:"notes"`
	Refresh       []string           `json:"refresh"` // with -refresh-only: sandboxes of which something else is recorded than seen
	Summary       plan.Summary       `json:"summary"`
	WakeAt        *time.Time         `json:"wake_at"`
	Diagnostics   config.Diagnostics `json:"diagnostics"`
	Checks        []config.Check     `json:"checks"` // the conditions of the configuration
	Digest        string             `json:"digest"` // of the configuration
	Lineage       string             `json:"lineage"`
	Serial        uint64             `json:"serial"`
}

// PlanJSON writes `plan -json`. extra are diagnostics found outside the plan.
func PlanJSON(w io.Writer, r *reconcile.PlanResult, extra config.Diagnostics) error {
	return JSON(w, planOf(r, extra))
}

func planOf(r *reconcile.PlanResult, extra config.Diagnostics) planDocument {
	p := r.Plan
	if p == nil {
		p = &plan.Plan{}
	}
	doc := planDocument{
		FormatVersion: FormatVersion,
		Changes:       changesOf(p.Changes),
		Drift:         list(p.Drift),
		Notes:         list(p.Notes),
		Refresh:       list(p.Refresh),
		Summary:       p.Summary,
		Diagnostics:   list(Merge(extra, PlanDiagnostics(r))),
		Checks:        list(r.Checks),
		Digest:        r.Digest,
		Lineage:       r.Lineage,
		Serial:        r.Serial,
	}
	if !p.WakeAt.IsZero() {
		doc.WakeAt = &p.WakeAt
	}
	return doc
}

func changesOf(all []plan.Change) []planChange {
	out := make([]planChange, 0, len(all))
	for _, c := range all {
		id := ""
		if c.Action == plan.ActImport {
			id = c.Instance
		}
		out = append(out, planChange{
			PreviousAddress: orNull(c.From), ID: orNull(id),
			Address: c.Address, Action: c.Action, Cause: c.Cause, Consequence: c.Consequence,
			Before: c.Before, After: c.After, ReplacePaths: list(c.ReplacePaths),
			Kind: c.Kind, Origin: c.Origin, Unknown: list(c.Unknown), Sensitive: list(c.Sensitive), DependsOn: list(c.DependsOn),
			Notes: list(c.Notes), Volumes: list(c.Volumes), Missing: list(c.Missing),
			CreateBeforeDestroy: c.CreateFirst, Deposed: orNull(c.Deposed),
		})
	}
	return out
}

// list is s, or an empty list that JSON does not write as null.
func list[S ~[]E, E any](s S) S {
	if s == nil {
		return S{}
	}
	return s
}

// PlanDiagnostics are all diagnostics of a result, each once: the plan's own may
// be among the result's.
func PlanDiagnostics(r *reconcile.PlanResult) config.Diagnostics {
	if r.Plan == nil {
		return r.Diagnostics
	}
	return Merge(r.Diagnostics, r.Plan.Diags)
}

// Merge joins diagnostics, each once.
func Merge(a, b config.Diagnostics) config.Diagnostics {
	var all config.Diagnostics
	for _, d := range append(append(config.Diagnostics{}, a...), b...) {
		if !contains(all, d) {
			all = append(all, d)
		}
	}
	return all
}

func contains(all config.Diagnostics, d config.Diagnostic) bool {
	for _, x := range all {
		if x.Severity == d.Severity && x.Summary == d.Summary && x.Detail == d.Detail && x.Address == d.Address && sameRange(x.Range, d.Range) {
			return true
		}
	}
	return false
}

func sameRange(a, b *config.Range) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// diagnosticsDocument is the answer of a command with -json that failed.
type diagnosticsDocument struct {
	FormatVersion string             `json:"format_version"`
	Diagnostics   config.Diagnostics `json:"diagnostics"`
}

// DiagnosticsJSON writes the document of a command that failed, or of one whose
// only answer is diagnostics.
func DiagnosticsJSON(w io.Writer, d config.Diagnostics) error {
	return JSON(w, diagnosticsDocument{FormatVersion, list(d)})
}

// validateDocument is `validate -json`.
type validateDocument struct {
	FormatVersion string             `json:"format_version"`
	Valid         bool               `json:"valid"` // there are no errors
	Errors        int                `json:"error_count"`
	Warnings      int                `json:"warning_count"`
	Diagnostics   config.Diagnostics `json:"diagnostics"`
}

// ValidateJSON writes `validate -json`.
func ValidateJSON(w io.Writer, d config.Diagnostics) error {
	doc := validateDocument{FormatVersion, !d.HasErrors(), 0, 0, list(d)}
	for _, x := range d {
		if x.Severity == "error" {
			doc.Errors++
		} else {
			doc.Warnings++
		}
	}
	return JSON(w, doc)
}

// applyDocument is `apply -json` and `destroy -json`: what was done, what failed, the
// outputs, and the plan it came from.
type applyDocument struct {
	planDocument
	Applied     plan.Summary          `json:"applied"` // what was really done
	Outputs     map[string]outputJSON `json:"outputs"`
	Failures    []reconcile.Failure   `json:"failures"`
	Interrupted bool                  `json:"interrupted"` // stopped early on request
}

// ApplyJSON writes `apply -json` and `destroy -json`.
func ApplyJSON(w io.Writer, r *reconcile.ApplyResult, extra config.Diagnostics) error {
	return JSON(w, applyDocument{
		planOf(&r.PlanResult, Merge(extra, r.Warnings)),
		r.Applied, outputsOf(r.Outputs, false), list(r.Failures), r.Interrupted,
	})
}

// listDocument is `list -json`, `wait -json`, `touch -json` and `kill -json`.
type listDocument struct {
	FormatVersion string        `json:"format_version"`
	Sandboxes     []sandboxJSON `json:"sandboxes"`
}

// ListJSON writes `list -json`.
func ListJSON(w io.Writer, r *reconcile.ListResult) error {
	doc := listDocument{FormatVersion, make([]sandboxJSON, 0, len(r.Sandboxes))}
	for _, s := range r.Sandboxes {
		doc.Sandboxes = append(doc.Sandboxes, sandboxOf(s))
	}
	return JSON(w, doc)
}

// describeDocument is `describe -json`.
type describeDocument struct {
	FormatVersion string                     `json:"format_version"`
	Sandbox       sandboxJSON                `json:"sandbox"`
	Spec          config.Sandbox             `json:"spec"`    // the effective values
	Sources       map[string]config.Position `json:"sources"` // where a value was written, by attribute path
	Lease         leaseJSON                  `json:"lease"`
	Restarts      retryJSON                  `json:"restarts"` // the series that goes on, by the restart block
	UID           string                     `json:"uid"`
	NextLook      *time.Time                 `json:"next_look"`   // when the planner wants to look again
	NextAction    *string                    `json:"next_action"` // what happens then, with its cause
	Events        []eventJSON                `json:"events"`      // the last 20, oldest first
}

// DescribeJSON writes `describe -json`.
func DescribeJSON(w io.Writer, r *reconcile.Description) error {
	return JSON(w, describeDocument{FormatVersion, sandboxOf(r.Sandbox), r.Spec, dict(r.Sources), leaseOf(r.Lease), retryOf(r.Restarts), r.UID, r.NextLook, orNull(r.NextAction), eventsOf(r.Events)})
}

// actDocument is the answer of an operator verb.
type actDocument struct {
	FormatVersion string      `json:"format_version"`
	Sandbox       sandboxJSON `json:"sandbox"` // as it is afterwards
	Note          *string     `json:"note"`
}

// ActJSON writes the answer of an operator verb.
func ActJSON(w io.Writer, r *reconcile.ActResult) error {
	return JSON(w, actDocument{FormatVersion, sandboxOf(r.Sandbox), orNull(r.Note)})
}
