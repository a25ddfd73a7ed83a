package view

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"pinfold/config"
)

// Screen is where text for people goes. The first failed write is kept and
// later ones are dropped; Err tells it.
type Screen struct {
	W     io.Writer
	Color bool
	Width int // columns of the terminal; 0: a pipe or file, nothing is cut or wrapped
	err   error
}

// Write implements io.Writer.
func (s *Screen) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.W.Write(p)
	s.err = err
	return n, err
}

// Err is the first error a write met.
func (s *Screen) Err() error { return s.err }

// Printf writes formatted text.
func (s *Screen) Printf(format string, args ...any) { fmt.Fprintf(s, format, args...) }

// style is an ANSI escape (ECMA-48 SGR).
type style string

const (
	bold   style = "\x1b[1m"
	dim    style = "\x1b[2m"
	red    style = "\x1b[31m"
	green  style = "\x1b[32m"
	amber  style = "\x1b[33m"
	cyan   style = "\x1b[36m"
	plain  style = ""
	normal       = "\x1b[0m"
)

// paint colours text when the screen has colour.
func (s *Screen) paint(c style, text string) string {
	if !s.Color || c == plain || text == "" {
		return text
	}
	return string(c) + text + normal
}

// printable replaces what does not print: control characters, with which a name
// or message could rewrite what the terminal shows, and format characters, with
// which it could turn the order of what stands there or hide a part (Unicode's
// classes Cc, Cf, Co, Cs, Zl, Zp and what is not assigned).
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if hides(r) && r != '\n' && r != '\t' {
			return utf8.RuneError
		}
		return r
	}, s)
}

func hides(r rune) bool { return !unicode.IsGraphic(r) }

// Printable is text that cannot change what the terminal shows around it.
func Printable(s string) string { return printable(s) }

// PrintableDiagnostics are d with nothing in them that does not print.
func PrintableDiagnostics(d config.Diagnostics) config.Diagnostics {
	out := slices.Clone(d)
	for i := range out {
		x := &out[i]
		for _, text := range []*string{&x.Summary, &x.Detail, &x.Address, &x.Context, &x.Snippet} {
			*text = printable(*text)
		}
		if x.Range != nil {
			at := *x.Range
			at.File = printable(at.File)
			x.Range = &at
		}
	}
	return out
}

// oneLine is printable text without line breaks.
func oneLine(s string) string {
	return strings.Join(strings.Fields(printable(s)), " ")
}

// columns counts the characters of text; nothing shown here is wider than one.
func columns(text string) int { return utf8.RuneCountInString(text) }

// pad fills text with spaces up to n columns.
func pad(text string, n int) string {
	if missing := n - columns(text); missing > 0 {
		return text + strings.Repeat(" ", missing)
	}
	return text
}

// cut shortens text to n columns, ending in "…".
func cut(text string, n int) string {
	if n <= 0 || columns(text) <= n {
		return text
	}
	runes := []rune(text)
	return string(runes[:n-1]) + "…"
}

// cutMiddle shortens text to n columns by what is in its middle: an address
// differs from its neighbours at its end.
func cutMiddle(text string, n int) string {
	if n <= 1 || columns(text) <= n {
		return text
	}
	runes := []rune(text)
	tail := (n - 1) / 2
	return string(runes[:n-1-tail]) + "…" + string(runes[len(runes)-tail:])
}

// plural writes a count with its noun: 1 sandbox, 2 sandboxes.
func plural(n int, one, many string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, one)
	}
	return fmt.Sprintf("%d %s", n, many)
}
