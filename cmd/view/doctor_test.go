package view

import (
	"bytes"
	"testing"

	"pinfold/reconcile"
)

func TestDoctor(t *testing.T) {
	r := &reconcile.DoctorResult{FormatVersion: "1", Failed: 1, Warned: 1, Checks: []reconcile.Check{
		{Name: "kernel", About: "host", Status: "ok", Found: "Linux 6.8.0"},
		{Name: "overlay", About: "host", Status: "fail", Found: "does not work: shift owners /: invalid argument", Advice: ptr("The file system of / has to take idmapped mounts (ext4, xfs, btrfs; not overlay).")},
		{Name: "run_dir", About: "state", Status: "ok", Found: "/run/x\x1b[2J is root's alone"},
		{Name: "agent", About: "agent", Status: "warn", Found: "none runs in /run/pinfold", Advice: ptr("Start 'pinfold agent'.")},
	}}
	for name, width := range map[string]int{"doctor": 0, "doctor-40": 40} {
		var out bytes.Buffer
		(&Screen{W: &out, Width: width}).Doctor(r)
		golden(t, name+".txt", out.Bytes())
	}
	for want, r := range map[string]*reconcile.DoctorResult{
		"\nEverything is in order.\n": {}, "\nNothing failed; 2 warnings.\n": {Warned: 2},
	} {
		var out bytes.Buffer
		(&Screen{W: &out}).Doctor(r)
		if out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
	}
}
