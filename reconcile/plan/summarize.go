package plan

// Summarize counts changes as the plan's summary does; the executor counts with
// it what was really done.
func Summarize(changes []Change) Summary { return summarize(changes) }
