package view

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"pinfold/reconcile"
)

// TopOrders are the orders of top.
var TopOrders = []string{"name", "cpu", "memory", "pids"}

// SortTop brings the lines into one of TopOrders; what is not known comes last, and by
// name what is equal.
func SortTop(t *reconcile.TopResult, order string) {
	slices.SortStableFunc(t.Sandboxes, func(a, b reconcile.SandboxTop) int {
		by := 0
		switch order {
		case "cpu":
			by = larger(a.CPUPercent, b.CPUPercent)
		case "memory":
			by = larger(a.Memory, b.Memory)
		case "pids":
			by = larger(a.PIDs, b.PIDs)
		}
		return cmp.Or(by, cmp.Compare(a.Address, b.Address))
	})
}

func larger[T cmp.Ordered](a, b *T) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return cmp.Compare(*b, *a)
}

// Top writes what sandboxes use as a table.
func (s *Screen) Top(t *reconcile.TopResult) {
	if len(t.Sandboxes) == 0 {
		s.Printf("No sandbox has a process.\n")
		return
	}
	rows := make([][]string, len(t.Sandboxes))
	for i := range t.Sandboxes {
		x := &t.Sandboxes[i]
		up, in, out := "-", "-", "-"
		if x.StartedAt != nil {
			up = span(t.At.Sub(*x.StartedAt))
		}
		if x.Network != nil {
			in, out = flow(x.Network.ReceivedPerSecond), flow(x.Network.SentPerSecond)
		}
		rows[i] = []string{
			x.Address,
			of(orDash(x.CPUPercent, percent), x.CPULimit, func(cores float64) string { return percent(100 * cores) }),
			of(orDash(x.Memory, amount), x.MemoryLimit, amount),
			of(orDash(x.PIDs, decimal), x.PIDsLimit, decimal),
			in, out, up, string(x.Phase),
		}
	}
	s.table(0, []column{{"SANDBOX", 0}, {"CPU", 0}, {"MEMORY", 0}, {"PIDS", 0}, {"IN", 2}, {"OUT", 2}, {"UP", 3}, {"PHASE", 1}}, rows)
	for i := range t.Sandboxes {
		if x := &t.Sandboxes[i]; x.Unknown != nil {
			s.Linef("%s %s cannot be looked at: %s\n", s.paint(bold, "Note:"), printable(x.Address), oneLine(*x.Unknown))
		}
	}
}

// of is an amount with its limit, if there is one.
func of[T any](amount string, limit *T, text func(T) string) string {
	if limit == nil {
		return amount
	}
	return amount + " / " + text(*limit)
}

func percent(x float64) string {
	if x < 99.95 && x != float64(int(x)) {
		return fmt.Sprintf("%.1f%%", x)
	}
	return fmt.Sprintf("%.0f%%", x)
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

func flow(perSecond *float64) string {
	return orDash(perSecond, func(x float64) string { return amount(int64(x)) + "/s" })
}
