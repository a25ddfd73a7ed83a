// Package plan decides. Make compares what the user wants (config.Desired),
// what was recorded (Records) and what is true on the host (Observed) at one
// moment (Now), and says what to do about it, why, what it costs and when it
// wants to be asked again.
//
// It is pure: no I/O, no clock, no randomness, no dependence on map order. The
// same Input gives the same Plan, byte for byte. It cannot import runtime or
// state; the executor translates. Command line and agent share it, so a dry run
// cannot differ from a real one and cannot touch the host.
package plan
