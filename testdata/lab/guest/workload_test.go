package main

import "testing"

func TestLastOf(t *testing.T) {
	for _, c := range []struct {
		text     string
		n, whole int
		good     bool
	}{
		{"", 0, 0, true},
		{"1\n2\n", 2, 4, true},
		{"1\n2", 1, 2, true},
		{"1\n2\n3\n4\n5\n6\n7\n8\n9\n10", 9, 18, true},
		{"1\n\x00\x00", 1, 2, true},
		{"1\n\x00\n", 1, 2, true},
		{"1\n\x00\x00\x00", 1, 2, false}, // more than one number was not flushed
		{"1\n3\n", 1, 2, false},
		{"2\n", 0, 0, false},
		{"1\n\x002\n3\n", 1, 2, false},
	} {
		n, whole, err := lastOf([]byte(c.text))
		if n != c.n || whole != c.whole || (err == nil) != c.good {
			t.Errorf("%q: %d, %d, %v", c.text, n, whole, err)
		}
	}
}
