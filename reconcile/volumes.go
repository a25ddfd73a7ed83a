package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// VolumesResult is `volume list -json`.
type VolumesResult struct {
	FormatVersion string       `json:"format_version"`
	Volumes       []VolumeView `json:"volumes"`
}

// VolumeView is a volume or a claim, with who mounts it. Absent things are null.
type VolumeView struct {
	Address        string        `json:"address"` // volume.NAME, or of a claim: sandbox.NAME volume "CLAIM"
	Sandbox        *string       `json:"sandbox"` // whose claim it is; null: a volume of its own
	Claim          *string       `json:"claim"`   // the claim's name
	ID             string        `json:"id"`
	Path           *string       `json:"path"`            // where its files lie on the host; null: they are not there
	Used           *VolumeUsed   `json:"used"`            // null: not there, or not counted
	Mounts         []VolumeMount `json:"mounts"`          // by the files as they were applied
	Users          []VolumeUser  `json:"users"`           // by the host: who has it now
	PreventDestroy bool          `json:"prevent_destroy"` // of a claim: its sandbox's, with which it goes
	CreatedAt      *time.Time    `json:"created_at"`      // null: not known
}

// VolumeUsed is what a volume takes on disk.
type VolumeUsed struct {
	Bytes    int64 `json:"bytes"`    // of the blocks on disk; a file of several names counts once
	Files    int64 `json:"files"`    // without directories
	Complete bool  `json:"complete"` // false: there is more, which was not counted in time or could not be read
}

// VolumeMount is where a sandbox mounts a volume.
type VolumeMount struct {
	Sandbox  string `json:"sandbox"`
	Path     string `json:"path"` // inside
	ReadOnly bool   `json:"read_only"`
}

// VolumeUser is a live instance that has a volume mounted.
type VolumeUser struct {
	Sandbox    string     `json:"sandbox"`
	InstanceID string     `json:"instance_id"`
	Phase      plan.Phase `json:"phase"` // created, running or paused
	PID        int        `json:"pid"`
	Path       string     `json:"path"` // inside
	ReadOnly   bool       `json:"read_only"`
	// Standing is own: the sandbox's instance; deposed: it goes when its replacement is
	// ready; released: it was given up; unrecorded: no record has it.
	Standing string `json:"standing"`
}

// VolumeDescription is `volume show -json`.
type VolumeDescription struct {
	Volume    VolumeView `json:"volume"`
	DependsOn []string   `json:"depends_on"`
	Events    []Event    `json:"events"` // the last 20, oldest first; none of a claim: they are its sandbox's
}

// How long counting may take: one volume of several, all of them, and one alone.
const (
	usageOfEach = 5 * time.Second
	usageOfAll  = 15 * time.Second
	usageOfOne  = time.Minute
	// usageAtOnce is how many volumes are counted at a time.
	usageAtOnce = 4
)

// ClaimAddress is what a sandbox's claim is called: sandbox.db volume "work".
func ClaimAddress(sandbox, claim string) string {
	return sandbox + " volume " + strconv.Quote(claim)
}

// Volumes tells of all volumes and claims on record, sorted by address.
func (e *Engine) Volumes(ctx context.Context) (*VolumesResult, error) {
	seen, err := e.observe(ctx)
	if err != nil {
		return nil, errorOf(fmt.Errorf("cannot look at the host: %w", err))
	}
	records := e.snapshot()
	all := volumeViews(&records, seen)
	within, cancel := context.WithTimeout(ctx, usageOfAll)
	defer cancel()
	var counting sync.WaitGroup
	turn := make(chan struct{}, usageAtOnce)
	for i := range all {
		turn <- struct{}{}
		counting.Go(func() {
			defer func() { <-turn }()
			e.count(within, &all[i], usageOfEach)
		})
	}
	counting.Wait()
	if err := ctx.Err(); err != nil {
		return nil, errorOf(fmt.Errorf("counting what volumes take: %w", err))
	}
	return &VolumesResult{FormatVersion: "1", Volumes: all}, nil
}

// count fills in what the volume takes, as far as it comes within the time.
func (e *Engine) count(ctx context.Context, v *VolumeView, atMost time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	u, err := e.host.VolumeUsage(ctx, v.ID)
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		return
	case err != nil && ctx.Err() == nil:
		e.log.Warn("cannot tell what a volume takes", "volume", v.Address, "error", err)
		v.Path = pointer(u.Path)
		return
	}
	v.Path = pointer(u.Path)
	v.Used = &VolumeUsed{Bytes: u.Bytes, Files: u.Files, Complete: err == nil && !u.Partial}
}

// Volume tells everything about one, by its address or a short name.
func (e *Engine) Volume(ctx context.Context, word string) (*VolumeDescription, error) {
	seen, err := e.observe(ctx)
	if err != nil {
		return nil, errorOf(fmt.Errorf("cannot look at the host: %w", err))
	}
	records := e.snapshot()
	all := volumeViews(&records, seen)
	v, err := meant(all, "volume", word, func(v *VolumeView) (string, string, string) {
		if v.Claim != nil {
			return v.Address, "sandbox", *v.Claim
		}
		return v.Address, "volume", ""
	})
	if err != nil {
		return nil, err
	}
	e.count(ctx, v, usageOfOne)
	if err := ctx.Err(); err != nil {
		return nil, errorOf(fmt.Errorf("counting what %s takes: %w", v.Address, err))
	}
	d := &VolumeDescription{Volume: *v, DependsOn: []string{}, Events: []Event{}}
	if rec := records.Volumes[v.Address]; rec != nil {
		d.DependsOn = append(d.DependsOn, rec.DependsOn...)
	}
	if v.Sandbox == nil {
		events, err := e.history(v.Address, 20)
		if err != nil {
			return nil, errorOf(err)
		}
		d.Events = append(d.Events, events...)
	}
	return d, nil
}

// volumeViews are the volumes and claims on record with who mounts them, without what
// they take.
func volumeViews(records *plan.Records, seen runtime.Observation) []VolumeView {
	users := usersOf(records, seen)
	all := []VolumeView{}
	for _, address := range sortedKeys(records.Volumes) {
		rec := records.Volumes[address]
		v := VolumeView{Address: address, ID: rec.ID, Mounts: []VolumeMount{}, Users: users[rec.ID], PreventDestroy: rec.Lifecycle.PreventDestroy}
		if !rec.CreatedAt.IsZero() {
			v.CreatedAt = pointer(rec.CreatedAt)
		}
		for _, user := range sortedKeys(records.Sandboxes) {
			for _, m := range records.Sandboxes[user].Spec.Mounts {
				if m.Volume == address {
					v.Mounts = append(v.Mounts, VolumeMount{Sandbox: user, Path: m.Path, ReadOnly: m.ReadOnly})
				}
			}
		}
		all = append(all, v)
	}
	for _, address := range sortedKeys(records.Sandboxes) {
		rec := records.Sandboxes[address]
		for _, name := range sortedKeys(rec.Claim) {
			v := VolumeView{
				Address: ClaimAddress(address, name), Sandbox: pointer(address), Claim: pointer(name), ID: rec.Claim[name],
				Mounts: []VolumeMount{}, Users: users[rec.Claim[name]], PreventDestroy: rec.Lifecycle.PreventDestroy,
			}
			if !rec.CreatedAt.IsZero() {
				v.CreatedAt = pointer(rec.CreatedAt) // a claim is made with its sandbox
			}
			if c, declared := rec.Spec.Volumes[name]; declared {
				v.Mounts = append(v.Mounts, VolumeMount{Sandbox: address, Path: c.Path, ReadOnly: c.ReadOnly})
			}
			all = append(all, v)
		}
	}
	for i := range all {
		if all[i].Users == nil {
			all[i].Users = []VolumeUser{}
		}
	}
	return all
}

// usersOf are the live instances that mount volumes, by the volume's id.
func usersOf(records *plan.Records, seen runtime.Observation) map[string][]VolumeUser {
	type owner struct{ address, standing string }
	owners := map[string]owner{}
	for address, rec := range records.Sandboxes {
		for _, id := range rec.Past() {
			owners[id] = owner{address, "deposed"}
		}
		if rec.Instance != nil {
			owners[rec.Instance.ID] = owner{address, "own"}
		}
	}
	users := map[string][]VolumeUser{}
	for _, id := range sortedKeys(seen.Instances) {
		in := seen.Instances[id]
		if in.Unknown != "" || !in.Alive {
			continue
		}
		o, recorded := owners[id]
		switch {
		case in.Released:
			o = owner{in.Mark.Address, "released"}
		case !recorded:
			o = owner{in.Mark.Address, "unrecorded"}
		}
		phase := plan.Running
		switch {
		case !in.Started:
			phase = plan.Created
		case in.Frozen:
			phase = plan.Paused
		}
		for _, m := range in.Mounts {
			if m.Kind == "volume" {
				users[m.Source] = append(users[m.Source], VolumeUser{
					Sandbox: o.address, InstanceID: id, Phase: phase, PID: in.Process.PID, Path: m.Path, ReadOnly: m.ReadOnly, Standing: o.standing,
				})
			}
		}
	}
	for _, of := range users {
		slices.SortStableFunc(of, func(a, b VolumeUser) int { return strings.Compare(a.Sandbox, b.Sandbox) })
	}
	return users
}

// meant finds the one that a user's word means: its address, the address without the
// modules it is in and its kind, or what else it is called.
func meant[T any](all []T, what, word string, calls func(*T) (address, kind, other string)) (*T, error) {
	var fits []int
	var addresses []string
	for i := range all {
		address, kind, other := calls(&all[i])
		if address == word || address == kind+"."+word {
			return &all[i], nil
		}
		if other == word || strings.HasSuffix(address, "."+kind+"."+word) {
			fits, addresses = append(fits, i), append(addresses, address)
		}
	}
	switch len(fits) {
	case 1:
		return &all[fits[0]], nil
	case 0:
		return nil, &Error{Kind: NotFound, Message: what + ": not found: " + word}
	}
	return nil, &Error{Kind: Invalid, Message: fmt.Sprintf("%q is ambiguous: %s", word, strings.Join(addresses, ", "))}
}

func (c *Client) Volumes(ctx context.Context) (*VolumesResult, error) {
	return ask[VolumesResult](ctx, c, "volumes", nil)
}

func (c *Client) Volume(ctx context.Context, name string) (*VolumeDescription, error) {
	return ask[VolumeDescription](ctx, c, "volume", name)
}
