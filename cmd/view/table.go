package view

import "strings"

// column is one column of a table. Columns with the highest drop go first when
// the screen is too narrow; those with drop 0 always stay.
type column struct {
	title string
	drop  int
}

const gap = "  "

// table aligns rows under their titles. On a screen too narrow the first
// column may shrink to a third of it; if that does not suffice, columns go.
func (s *Screen) table(indent int, cols []column, rows [][]string) {
	shown := make([]bool, len(cols))
	widths := make([]int, len(cols))
	for i, c := range cols {
		shown[i] = true
		widths[i] = columns(c.title)
		for _, row := range rows {
			widths[i] = max(widths[i], columns(row[i]))
		}
	}
	if s.Width > 0 {
		rest := func() int { // what the columns beside the first take
			n := indent
			for i := 1; i < len(cols); i++ {
				if shown[i] {
					n += widths[i] + len(gap)
				}
			}
			return n
		}
		least := min(widths[0], max(16, s.Width/3))
		for rest()+least > s.Width {
			last := 0
			for i, c := range cols {
				if shown[i] && c.drop > 0 && (last == 0 || c.drop > cols[last].drop) {
					last = i
				}
			}
			if last == 0 {
				break
			}
			shown[last] = false
		}
		widths[0] = min(widths[0], max(least, s.Width-rest()))
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
