package config

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/mitchellh/go-wordwrap"
)

// Fprint writes diagnostics for people: a box each, with severity and summary,
// the place, the source lines with what is meant underlined, and the detail
// wrapped at width columns (0: not wrapped). The error is that of the writer.
func Fprint(w io.Writer, d Diagnostics, color bool, width int) error {
	for _, one := range d {
		if _, err := io.WriteString(w, box(one, color, width)); err != nil {
			return fmt.Errorf("cannot print diagnostics: %w", err)
		}
	}
	return nil
}

const (
	styleReset = "\x1b[0m"
	styleBold  = "\x1b[1m"
	styleRed   = "\x1b[31m"
	styleAmber = "\x1b[33m"
)

func box(d Diagnostic, color bool, width int) string {
	paint := func(style, s string) string {
		if !color || s == "" {
			return s
		}
		return style + s + styleReset
	}
	label, tone := "Error: ", styleRed
	if d.Severity == "warning" {
		label, tone = "Warning: ", styleAmber
	}
	bar := paint(tone, "│")
	var out strings.Builder
	line := func(s string) {
		out.WriteString(strings.TrimRight(bar+" "+s, " ") + "\n")
	}
	out.WriteString(paint(tone, "╷") + "\n")
	for i, s := range strings.Split(wrap(label+printable(d.Summary), width-2), "\n") {
		first := ""
		if i == 0 {
			first, s = label, strings.TrimPrefix(s, strings.TrimRight(label, " "))
			s = strings.TrimPrefix(s, " ")
		}
		line(paint(tone, paint(styleBold, first)) + paint(styleBold, s))
	}
	if d.Range != nil {
		line("")
		where := fmt.Sprintf("  on %s line %d", printable(d.Range.File), d.Range.Start.Line)
		if d.Context != "" {
			where += ", in " + printable(d.Context)
		}
		for _, s := range strings.Split(wrap(where+":", width-2), "\n") {
			line(s)
		}
		for _, s := range quoted(d.Range, d.Snippet, width-2, func(s string) string { return paint(tone, s) }) {
			line(s)
		}
	}
	if tellsMore(d) {
		line("")
		for _, s := range strings.Split(wrap("  for "+printable(d.Address), width-2), "\n") {
			line(s)
		}
	}
	if d.Detail != "" {
		line("")
		for _, s := range strings.Split(wrap(printable(d.Detail), width-2), "\n") {
			line(s)
		}
	}
	out.WriteString(paint(tone, "╵") + "\n")
	return out.String()
}

// tellsMore reports whether the address says something that file and block do not:
// one of several instances, or which call of a module.
func tellsMore(d Diagnostic) bool {
	inModule := strings.HasPrefix(d.Address, "module.") && (d.Range == nil || strings.Contains(d.Range.File, "/"))
	return inModule || strings.Contains(d.Address, "[")
}

// quoted is the source with line numbers and the range underlined; lines are folded
// at width columns (0 or less: they are not).
func quoted(r *Range, snippet string, width int, paint func(string) string) []string {
	if snippet == "" {
		return nil
	}
	lines := strings.Split(snippet, "\n")
	digits := len(fmt.Sprint(r.Start.Line + len(lines) - 1))
	var out []string
	for i, source := range lines {
		number := r.Start.Line + i
		source = strings.ReplaceAll(printable(source), "\t", "    ")
		label := fmt.Sprintf("  %*d: ", digits, number)
		length := utf8.RuneCountInString(lines[i])
		from, to := 0, length
		if number == r.Start.Line {
			from = min(r.Start.Column-1, length)
		} else {
			from = length - utf8.RuneCountInString(strings.TrimLeft(lines[i], " \t"))
		}
		if number == r.End.Line {
			to = min(r.End.Column-1, length)
		}
		if to <= from {
			if number != r.Start.Line {
				out = append(out, folded(label, source, "", width, paint)...)
				continue
			}
			to = from + 1 // an empty range, such as the end of the file
		}
		before := string([]rune(lines[i])[:from])
		pad := strings.Repeat(" ", from+3*strings.Count(before, "\t"))
		marked := string([]rune(lines[i])[from:min(to, length)])
		carets := strings.Repeat("^", to-from+3*strings.Count(marked, "\t"))
		out = append(out, folded(label, source, pad+carets, width, paint)...)
	}
	return out
}

// folded is a source line with its carets, broken into pieces that fit, each with its
// part of the carets below.
func folded(label, source, carets string, width int, paint func(string) string) (out []string) {
	text, marks := []rune(source), []rune(carets)
	margin := strings.Repeat(" ", len(label))
	for first := true; first || len(text) > 0 || len(marks) > 0; first = false {
		n := max(len(text), len(marks))
		if room := max(width-len(label), 10); width > 0 && n > room {
			n = room
			// Between words, where one ends in the second half.
			if at := strings.LastIndex(string(text[:min(n, len(text))]), " "); at >= 0 {
				if at = utf8.RuneCountInString(string(text[:min(n, len(text))])[:at]) + 1; at > room/2 {
					n = at
				}
			}
		}
		piece, below := text[:min(n, len(text))], string(marks[:min(n, len(marks))])
		text, marks = text[len(piece):], marks[len([]rune(below)):]
		if first || len(piece) > 0 {
			out = append(out, strings.TrimRight(label+string(piece), " "))
		}
		if under := strings.TrimLeft(below, " "); under != "" {
			out = append(out, margin+strings.Repeat(" ", len(below)-len(under))+paint(under))
		}
		label = margin
	}
	return out
}

func wrap(s string, width int) string {
	if width <= 0 {
		return s
	}
	return wordwrap.WrapString(s, uint(width))
}

// printable replaces control characters, which a file or a value could use to
// rewrite what the terminal shows.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return utf8.RuneError
		}
		return r
	}, s)
}
