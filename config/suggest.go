package config

import (
	"fmt"
	"slices"

	"github.com/agext/levenshtein"
)

// didYouMean is " (did you mean …?)"-like text for the closest of names, or
// nothing when none is close. Ties go to the first in the alphabet.
func didYouMean(given string, names []string) string {
	if best := closest(given, names); best != "" {
		return fmt.Sprintf(". Did you mean %q?", best)
	}
	return ""
}

// closest is the name most like given: at most a third of its letters, and
// never more than three, may differ.
func closest(given string, names []string) string {
	best, distance := "", min(3, (len(given)+2)/3)+1
	for _, name := range slices.Sorted(slices.Values(names)) {
		if d := levenshtein.Distance(given, name, nil); d < distance {
			best, distance = name, d
		}
	}
	return best
}
