package view

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
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

// printable replaces control characters, with which a name or message could
// rewrite what the terminal shows.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return utf8.RuneError
		}
		return r
	}, s)
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
