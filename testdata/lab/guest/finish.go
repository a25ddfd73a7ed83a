package main

import (
	"fmt"
	"strings"

	"pinfold/runtime/leftovers"
)

// finish destroys everything and wants nothing of it to be left.
func (d *driver) finish() error {
	f, _ := recall[farm](d, noteFarm)
	if _, err := pinfold(append([]string{"destroy", "-auto-approve"}, f.Sure.flags()...)...); err != nil {
		return err
	}
	all, err := list()
	if err != nil {
		return err
	}
	if len(all) > 0 {
		return fmt.Errorf("after destroy there are still: %s", phases(all))
	}
	if err := d.agent.sound(); err != nil {
		return err
	}
	// The cgroup that all were in goes with the last process that may make one.
	if err := d.agent.stop(); err != nil {
		return err
	}
	short, err := shortID()
	if err != nil {
		return err
	}
	left, err := leftovers.Settled(short, stateDir, runDir)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("after destroy there are left: %s", strings.Join(left, "; "))
	}
	say("destroyed; nothing is left")
	return nil
}
