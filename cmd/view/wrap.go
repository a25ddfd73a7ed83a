package view

import (
	"fmt"
	"regexp"
	"strings"
)

// sgr is a change of colour, which takes no room.
var sgr = regexp.MustCompile("\x1b\\[[0-9;]*m")

// room is how many columns painted text takes.
func room(text string) int { return columns(sgr.ReplaceAllString(text, "")) }

// Linef writes formatted lines, each broken between words where the screen is too
// narrow; what goes on in the next line is indented further. A word that is longer than
// a line stays whole. Into a pipe or file lines go as they are.
func (s *Screen) Linef(format string, args ...any) {
	s.Printf("%s", s.Fold(fmt.Sprintf(format, args...)))
}

// Fold is text with its lines broken as Linef does.
func (s *Screen) Fold(text string) string {
	if s.Width == 0 {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if room(line) > s.Width {
			lines[i] = strings.Join(broken(line, s.Width), "\n")
		}
	}
	return strings.Join(lines, "\n")
}

// broken cuts a line between words.
func broken(line string, width int) (out []string) {
	indent := len(line) - len(strings.TrimLeft(line, " "))
	hang := spaces(min(indent+4, width/2))
	current, length := spaces(indent), indent
	empty := true
	for _, word := range strings.SplitAfter(line[indent:], " ") {
		// A word has the spaces behind it; several in a row are words of their own.
		n := room(strings.TrimRight(word, " "))
		if !empty && length+n > width {
			out = append(out, strings.TrimRight(current, " "))
			current, length, empty = hang, len(hang), true
		}
		if empty && n == 0 {
			current += word[:len(word)-strings.Count(word, " ")] // only colour
			continue
		}
		current, length, empty = current+word, length+room(word), false
	}
	if current = strings.TrimRight(current, " "); current != "" || len(out) == 0 {
		out = append(out, current)
	}
	return out
}
