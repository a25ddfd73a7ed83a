package reconcile

import (
	"context"

	"pinfold/config"
	"pinfold/reconcile/plan"
)

// RecordsResult is everything that is recorded, as it was when it was asked for.
// The host is not looked at. The records are shared: read only.
type RecordsResult struct {
	Dir     string         `json:"dir,omitempty"` // the directory that the state serves; empty: none yet
	Records plan.Records   `json:"records"`
	Exports config.Exports `json:"exports"` // what expressions may read of what is recorded
}

// Records tells what is recorded.
func (e *Engine) Records(context.Context) (*RecordsResult, error) {
	r := &RecordsResult{Dir: e.meta(metaConfigDir), Records: e.snapshot(), Exports: e.exports()}
	r.Records.Lineage = e.store.Lineage()
	for address, rec := range r.Records.Sandboxes { // of a snapshot: the map is ours
		if len(rec.Sensitive) > 0 {
			told := *rec
			told.Spec = redactedSpec(&rec.Spec, rec.Sensitive)
			r.Records.Sandboxes[address] = &told
		}
	}
	for name, o := range r.Records.Outputs {
		r.Records.Outputs[name] = &redactedOutputs([]config.Output{*o})[0]
	}
	return r, nil
}

// Records asks the agent for what is recorded.
func (c *Client) Records(ctx context.Context) (*RecordsResult, error) {
	return ask[RecordsResult](ctx, c, "records", nil)
}
