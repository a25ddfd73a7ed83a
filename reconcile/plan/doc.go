// Package plan decides. Make compares what the user wants (config.Desired),
// what was recorded (Records) and what is true on the host (Observed) at one
// moment (Now), and says what to do about it, why, what it costs and when it
// wants to be asked again.
//
// It is pure: no I/O, no clock, no randomness, no dependence on map order. The
// same Input gives the same Plan, byte for byte. It cannot import runtime or
// state; the executor translates. Command line and agent share it, so a dry run
// cannot differ from a real one and cannot touch the host.
//
// # What an executor does with a plan
//
// It stores Status where it differs from the records, then carries out Changes.
// A change waits for the earlier changes of its own address and of those in
// DependsOn. What each action does to the record, beside the host:
//
//   - A change with After adopts the declared spec (Adopt), whatever its action.
//     Revive clears Expired (Revive). release sets the hold to Hold (nil: none);
//     with Wake it does what a resume does to the lease (OnResume) and ends the expiry.
//   - create, replace and recreate make a new instance and end in mode Then; the
//     first create, and a replace with NewLease, start the lease (StartLease) when
//     the instance becomes created. replace and recreate keep uid, hold, address,
//     ports, id range and claims, except an address that is not in its network's
//     range any more. recreate carries the writable layer over unless Fresh.
//   - start begins from created, or from stopped on the same files, after
//     releasing what an ended process left; a successful start clears StoppedBy,
//     Outcome and Retry.Error, and sets RunningSpec to the generation. After a
//     kill or a loss Retry becomes Backoff's.
//   - suspend and a restart's first half never let a frozen process run again.
//   - start with Reason Restarted is one by the restart block: Restarts becomes
//     RestartBackoff's. A start by an operator, and the recreate of a failed one,
//     clear Restarts.
//   - pause and suspend with Hold leave that hold, once the sandbox was seen idle a
//     second time under its lane. Whoever freezes sets the lease to OnPause's,
//     whoever resumes to OnResume's.
//   - expire records Expired first, with Deadline and Reason, then acts by Then
//     and sets Done. "paused" sets Expired.Paused, leaves Hold (nil: the hold there
//     is) and sets the lease to OnExpiry's; any other Then begins with EndPause. One
//     that is stopped already keeps its StoppedBy and Outcome. "destroyed" leaves an
//     Ended with EndReason.
//   - delete with Reason "lost" leaves an Ended; forget removes one.
//   - noop releases what an ended process held. With Warn it is an event and sets
//     Warned, with Then "failed" the instance is failed for Reason.
//
// Values unknown at plan are evaluated when what they refer to is up; Make then
// decides again about that one sandbox.
package plan
