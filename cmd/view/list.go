package view

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// List writes sandboxes as a table.
func (s *Screen) List(r *reconcile.ListResult, now time.Time) {
	if len(r.Sandboxes) == 0 {
		s.Printf("No sandboxes.\n")
		return
	}
	cols := []column{
		{"SANDBOX", 0}, {"PHASE", 0}, {"MODE", 5}, {"READY", 2}, {"PID", 6}, {"ADDRESS", 4}, {"PORTS", 3}, {"EXPIRES", 1}, {"AGE", 7},
	}
	var rows [][]string
	for _, x := range r.Sandboxes {
		rows = append(rows, []string{
			oneLine(x.Address), string(x.Phase), modeOf(x), readyOf(x),
			orDash(x.PID, strconv.Itoa), orDash(x.AddressV4, oneLine), portsOf(x.Ports), expiresOf(x, now),
			orDash(x.CreatedAt, func(t time.Time) string { return span(now.Sub(t)) }),
		})
	}
	s.table(0, cols, rows)
}

func orDash[T any](v *T, text func(T) string) string {
	if v == nil {
		return "-"
	}
	return text(*v)
}

// modeOf is the effective mode, with whose hold makes it so.
func modeOf(x reconcile.SandboxView) string {
	if x.Hold == nil {
		return x.Mode
	}
	return x.Mode + " (held)"
}

// readyOf is "yes", or why not.
func readyOf(x reconcile.SandboxView) string {
	for _, c := range x.Conditions {
		if c.Type == "Ready" {
			if c.Status == "True" {
				return "yes"
			}
			return c.Reason
		}
	}
	return "-"
}

// portsOf lists published ports as host->container; the host's address only
// where it is not the usual 127.0.0.1.
func portsOf(ports map[string]plan.Port) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		out = append(out, portOf(ports[name]))
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ",")
}

func portOf(p plan.Port) string {
	text := fmt.Sprintf("%d->%d", p.Host, p.Container)
	if p.Address != "" && p.Address != "127.0.0.1" {
		text = p.Address + ":" + text
	}
	if p.Protocol != "" && p.Protocol != "tcp" {
		text += "/" + p.Protocol
	}
	return text
}

func expiresOf(x reconcile.SandboxView, now time.Time) string {
	switch {
	case x.ExpiresAt != nil:
		return ago(*x.ExpiresAt, now)
	case x.EndedAt != nil:
		return ago(*x.EndedAt, now)
	}
	return "never"
}
