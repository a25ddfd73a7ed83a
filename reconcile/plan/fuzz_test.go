package plan

import (
	"math/rand"
	"testing"

	"pgregory.net/rapid"
)

// FuzzPlan draws inputs from bytes, which the fuzzer changes by what they reach: the
// plan has no panic, and holds to what the property tests of the same names say. What
// it finds is kept in testdata/fuzz and run by go test from then on.
func FuzzPlan(f *testing.F) {
	r := rand.New(rand.NewSource(1))
	for range 16 { // a world takes some thousand bytes to draw: from few of them nothing is
		seed := make([]byte, 16<<10)
		r.Read(seed)
		f.Add(seed)
	}
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) {
		switch pick(t, "property", "bounds", "nothing left", "no fight") {
		case "bounds":
			staysInBounds(t)
		case "nothing left":
			leavesNothingToDo(t)
		case "no fight":
			stepsDoNotFight(t)
		}
	}))
}
