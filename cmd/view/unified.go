package view

import (
	"fmt"
	"strings"
)

// Unified writes the difference of two texts in diff's unified format, with
// three lines around each change.
func (s *Screen) Unified(name string, before, after []byte) {
	const around = 3
	all := script(textLines(before), textLines(after))
	s.Printf("%s\n%s\n", s.paint(bold, "--- "+printable(name)), s.paint(bold, "+++ "+printable(name)))
	beforeLine, afterLine := 1, 1
	for i := 0; i < len(all); {
		first := i
		for first < len(all) && all[first].symbol == " " {
			first++
		}
		if first == len(all) {
			return
		}
		// A hunk runs until more unchanged lines follow than two margins.
		last, end := first, first
		for end < len(all) && end-last <= 2*around {
			if all[end].symbol != " " {
				last = end
			}
			end++
		}
		from, to := max(i, first-around), min(len(all), last+around+1)
		beforeLine += from - i
		afterLine += from - i
		was, is := 0, 0
		for _, x := range all[from:to] {
			if x.symbol != "+" {
				was++
			}
			if x.symbol != "-" {
				is++
			}
		}
		s.Printf("%s\n", s.paint(cyan, fmt.Sprintf("@@ -%s +%s @@", hunk(beforeLine, was), hunk(afterLine, is))))
		for _, x := range all[from:to] {
			s.Printf("%s\n", s.paint(symbolColors[x.symbol], x.symbol+printable(x.text)))
		}
		beforeLine += was
		afterLine += is
		i = to
	}
}

// hunk is a range as diff writes it: an empty one names the line before it.
func hunk(line, count int) string {
	if count == 0 {
		line--
	}
	return fmt.Sprintf("%d,%d", line, count)
}

func textLines(b []byte) []string {
	if len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}
