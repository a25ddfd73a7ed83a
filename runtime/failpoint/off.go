//go:build !failpoints

package failpoint

// Step is one step that touches the host: do, and nothing else.
func Step(name string, do func() error) error { return do() }

// Get is a Step that gives something.
func Get[T any](name string, do func() (T, error)) (T, error) { return do() }

// Hit is an instant between the parts of a step.
func Hit(name string) {}
