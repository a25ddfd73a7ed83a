package view

import (
	"slices"
	"strings"
)

// column is one column of a table. Those with drop 0 always stay; of the others
// the ones with the lowest get the room a narrow screen has.
type column struct {
	title string
	drop  int
}

const gap = "  "

// table aligns rows under their titles, each cell made printable. On a screen too
// narrow the first column may shrink to a third of it, and columns that still do
// not fit go.
func (s *Screen) table(indent int, cols []column, rows [][]string) {
	for _, row := range rows {
		for i := range row {
			row[i] = oneLine(row[i])
		}
	}
	shown := make([]bool, len(cols))
	widths := make([]int, len(cols))
	for i, c := range cols {
		shown[i] = c.drop == 0 || s.Width == 0
		widths[i] = columns(c.title)
		for _, row := range rows {
			widths[i] = max(widths[i], columns(row[i]))
		}
	}
	if s.Width > 0 {
		least := min(widths[0], max(16, s.Width/3))
		used := indent + least
		for i := 1; i < len(cols); i++ {
			if shown[i] {
				used += len(gap) + widths[i]
			}
		}
		order := make([]int, 0, len(cols))
		for i, c := range cols {
			if c.drop > 0 {
				order = append(order, i)
			}
		}
		slices.SortFunc(order, func(a, b int) int { return cols[a].drop - cols[b].drop })
		for _, i := range order {
			if used+len(gap)+widths[i] <= s.Width {
				shown[i] = true
				used += len(gap) + widths[i]
			}
		}
		widths[0] = min(widths[0], max(least, least+s.Width-used))
	}
	write := func(cells []string, c style) {
		var out strings.Builder
		for i, cell := range cells {
			if shown[i] {
				out.WriteString(pad(cutMiddle(cell, widths[i]), widths[i]) + gap)
			}
		}
		s.Printf("%s%s\n", spaces(indent), s.paint(c, strings.TrimRight(out.String(), " ")))
	}
	titles := make([]string, len(cols))
	for i, c := range cols {
		titles[i] = c.title
	}
	write(titles, bold)
	for _, row := range rows {
		write(row, plain)
	}
}
