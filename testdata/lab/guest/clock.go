package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// noticeBound is what "within seconds" may be in an emulated machine.
	noticeBound = 20 * time.Second
	// A deadline this near is passed by the time that really goes by, whatever the
	// clock says.
	nearDeadline = 20 * time.Second
	watchFor     = nearDeadline + 10*time.Second
)

// stepClock sets the machine's clock while the agent runs.
func (d *driver) stepClock() error {
	began := time.Now()
	for _, step := range []func() error{d.forwards, d.backwards, d.latched} {
		if err := step(); err != nil {
			return err
		}
	}
	// Back to what the time is.
	if err := setClock(began.Round(0).Add(time.Since(began))); err != nil {
		return err
	}
	if err := d.apply(vars{Word: "clock"}); err != nil {
		return err
	}
	if _, err := d.converged(); err != nil {
		return err
	}
	return errors.Join(d.nothingToDo(), d.agent.sound())
}

func setClock(t time.Time) error {
	spec := unix.NsecToTimespec(t.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &spec); err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	return nil
}

// dueAt applies a deadline for each policy and waits until all is as it is to be.
func (d *driver) dueAt(name string, at time.Time) error {
	v := vars{Word: name, Due: map[string]due{}}
	for _, policy := range []string{"retain", "delete"} {
		v.Due[name+"-"+policy] = due{At: at.UTC().Truncate(time.Second), Policy: policy}
	}
	if err := d.apply(v); err != nil {
		return err
	}
	_, err := d.converged()
	return err
}

// noticed waits until what is due is done.
func (d *driver) noticed(what string) error {
	began := time.Now()
	err := poll(context.Background(), noticeBound, func() error {
		all, err := list()
		if err != nil {
			return err
		}
		return d.judge(all)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	say("%s: deadlines were acted on within %.1f s", what, time.Since(began).Seconds())
	return nil
}

// forwards steps over deadlines.
func (d *driver) forwards() error {
	at := time.Now().Add(time.Hour)
	if err := d.dueAt("forwards", at); err != nil {
		return err
	}
	if err := setClock(at.Add(time.Second)); err != nil {
		return err
	}
	return d.noticed("the clock was set forwards by 1 h")
}

// backwards steps away from deadlines: what the timers would say passes, and nothing
// is to end. Then it comes back to them.
func (d *driver) backwards() error {
	// The apply itself takes a while here, so the deadline is near only after the step.
	at := time.Now().Add(time.Hour)
	if err := d.dueAt("backwards", at); err != nil {
		return err
	}
	if err := setClock(at.Add(-nearDeadline)); err != nil {
		return err
	}
	if err := d.stays(3*time.Second, d.judge); err != nil { // the agent has seen it
		return err
	}
	if err := setClock(at.Add(-3 * time.Hour)); err != nil {
		return err
	}
	if err := d.stays(watchFor, d.judge); err != nil {
		return fmt.Errorf("the clock was set backwards by 3 h: %w", err)
	}
	say("the clock was set backwards by 3 h: for %s, %s longer than the timer had to go, nothing ended", watchFor, watchFor-nearDeadline)
	if err := setClock(at.Add(time.Second)); err != nil {
		return err
	}
	return d.noticed("the clock was set to the deadline")
}

// latched steps back behind deadlines that were acted on.
func (d *driver) latched() error {
	if err := setClock(time.Now().Add(-2 * time.Hour)); err != nil {
		return err
	}
	err := d.stays(10*time.Second, func(all map[string]*sandbox) error {
		kept, deleted := all[dueAddress("backwards-retain")], all[dueAddress("backwards-delete")]
		switch {
		case deleted != nil:
			return fmt.Errorf("%s is back, %s", deleted.Address, deleted.Phase)
		case kept == nil || kept.Phase != "stopped" || !kept.is("Expired"):
			return fmt.Errorf("%s is not stopped and Expired any more", dueAddress("backwards-retain"))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("the clock was set behind a deadline that was acted on: %w", err)
	}
	if err := d.nothingToDo(); err != nil {
		return err
	}
	say("the clock was set behind the deadline: what ended stays ended")
	return nil
}

// stays looks again and again for as long as the time says.
func (d *driver) stays(as time.Duration, judge func(map[string]*sandbox) error) error {
	for began := time.Now(); time.Since(began) < as; time.Sleep(time.Second) {
		all, err := list()
		if err != nil {
			return err
		}
		if err := judge(all); err != nil {
			return fmt.Errorf("after %.1f s: %w", time.Since(began).Seconds(), err)
		}
	}
	return nil
}
