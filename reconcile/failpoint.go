//go:build !failpoints

package reconcile

// failpoint marks an instant at which a crash must be survivable. Without the
// build tag failpoints it compiles to nothing.
func failpoint(string) {}
