package uncovered

import (
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"pinfold/runtime/failpoint"
)

func covered(path string) error {
	if err := failpoint.Step("a.file.remove", func() error { return os.Remove(path) }); err != nil {
		return err
	}
	f, err := failpoint.Get("a.file.make", func() (*os.File, error) { return os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0) })
	if err != nil {
		return err
	}
	f.Close()
	if f, err = os.OpenFile(path, os.O_WRONLY, 0); err != nil {
		return err
	}
	return failpoint.Step("a.program.start", exec.Command("true").Start)
}

func uncovered(path string, flags int) {
	os.Remove(path)                   // want: os.Remove stands in no failpoint.Step
	defer os.RemoveAll(path)          // want: os.RemoveAll stands in no failpoint.Step
	later := unix.Rmdir               // want: golang.org/x/sys/unix.Rmdir stands in no failpoint.Step
	os.OpenFile(path, os.O_CREATE, 0) // want: os.OpenFile stands in no failpoint.Step
	os.OpenFile(path, flags, 0)       // want: os.OpenFile stands in no failpoint.Step
	exec.Command("true").Start()      // want: (*os/exec.Cmd).Start stands in no failpoint.Step
	failpoint.Hit("a.between")
	failpoint.Step("a.nothing.do", func() error { return nil }) // want: the step touches the host in 0 places, not one
	failpoint.Step("a.too.much", func() error {                 // want: the step touches the host in 2 places, not one
		os.Remove(path)
		return os.Mkdir(path, 0)
	})
	_ = later
}
