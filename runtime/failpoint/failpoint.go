// Package failpoint marks the steps that touch the host or the state, so that
// tests can kill the process, or make the step fail, exactly there. Names are
// PACKAGE.OBJECT.VERB, such as "host.layer.mount"; each stands in one place.
//
// Without the build tag failpoints it compiles to nothing. With it, the variable
// PINFOLD_FAILPOINT arms one point:
//
//	NAME@WHEN[:N]=WHAT
//
// WHEN is before, after (only of a Step or Get) or at (only of a Hit); N counts how often the
// process passes the point, from 1 (the default), and WHAT is kill (SIGKILL to this
// process) or an errno by its name: ENOSPC, EBUSY, EPERM, ENOMEM, ETIMEDOUT. An
// errno after a step is what a time-out looks like behind which it happened. With
// "*" for N it strikes each time. PINFOLD_FAILPOINT_LOG names a file to which each
// point that is passed appends a line NAME@WHEN.
//
// A Step or Get wraps one call that touches the host and nothing else, so that an error
// after it is one behind which all of it has happened. A test in package names holds
// the source to that.
package failpoint
