package config

import (
	"fmt"
	"slices"

	"github.com/agext/levenshtein"
)

// didYouMean ends a sentence with a suggestion of the closest of names; it is
// empty when none is close.
func didYouMean(given string, names []string) string {
	if best := closest(given, names); best != "" {
		return fmt.Sprintf(". Did you mean %q?", best)
	}
	return ""
}

// closest is the name most like given: at most a third of its letters, and
// never more than three, may differ. Ties go to the first in the alphabet.
// Among very many names nothing is suggested: a generated configuration with
// thousands of wrong references must not take minutes to refuse.
func closest(given string, names []string) string {
	if len(names) > 1000 {
		return ""
	}
	best, distance := "", min(3, (len(given)+2)/3)+1
	for _, name := range slices.Sorted(slices.Values(names)) {
		if d := levenshtein.Distance(given, name, nil); d < distance {
			best, distance = name, d
		}
	}
	return best
}
