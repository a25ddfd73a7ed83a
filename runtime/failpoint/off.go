//go:build !failpoints

package failpoint

// Step is one step that touches the host: do, and nothing else.
func Step(name string, do func() error) error { return do() }

// Hit is an instant between the parts of a step.
func Hit(name string) {}
