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

// narrowest is the width below which a table keeps what has no room: it stands below
// its row, with the column's name.
const narrowest = 60

// table aligns rows under their titles, each cell made printable. On a screen too
// narrow the first column may shrink to a third of it, and columns that still do
// not fit go; on a very narrow one they go below their row. A first cell that would look
// like another's when it is cut stands whole on a line above its row.
func (s *Screen) table(indent int, cols []column, rows [][]string) {
	for _, row := range rows {
		for i := range row {
			row[i] = oneLine(row[i])
		}
	}
	tight := s.Width > 0 && s.Width < narrowest
	shown := make([]bool, len(cols))
	widths := make([]int, len(cols))
	for i, c := range cols {
		shown[i] = s.Width == 0 || c.drop == 0 && (!tight || i == 0)
		widths[i] = columns(c.title)
		for _, row := range rows {
			widths[i] = max(widths[i], columns(row[i]))
		}
	}
	if s.Width > 0 {
		least := min(widths[0], max(16, s.Width/3))
		used := indent + least
		order := make([]int, 0, len(cols))
		for i := range cols {
			switch {
			case !shown[i]:
				order = append(order, i)
			case i > 0:
				used += len(gap) + widths[i]
			}
		}
		slices.SortStableFunc(order, func(a, b int) int { return cols[a].drop - cols[b].drop })
		for _, i := range order {
			if used+len(gap)+widths[i] <= s.Width {
				shown[i] = true
				used += len(gap) + widths[i]
			}
		}
		widths[0] = min(widths[0], max(least, least+s.Width-used))
	}
	line := func(cells []string, c style) {
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
	line(titles, bold)
	apart := map[string]int{} // rows by what is left of their first cell
	for _, row := range rows {
		apart[cutMiddle(row[0], widths[0])]++
	}
	for _, row := range rows {
		if columns(row[0]) > widths[0] && (tight || apart[cutMiddle(row[0], widths[0])] > 1) {
			s.Linef("%s%s\n", spaces(indent), row[0])
			row = slices.Concat([]string{""}, row[1:])
		}
		line(row, plain)
		var rest []string
		for i, cell := range row {
			if !shown[i] && cell != "" && cell != "-" {
				rest = append(rest, strings.ToLower(cols[i].title)+" "+cell)
			}
		}
		if tight && len(rest) > 0 {
			s.Linef("%s%s\n", spaces(indent+2), s.paint(dim, strings.Join(rest, ", ")))
		}
	}
}
