package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// prepareDir makes the state dir, or checks the one that is there: whoever can
// write to it, or turn a link to it elsewhere, could put another state in place.
func prepareDir(dir string, mayMake bool) error {
	fi, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if !mayMake {
			return noState(filepath.Join(dir, fileName))
		}
		if err := makeDir(dir); err != nil {
			return fmt.Errorf("cannot make state dir %s: %w; run as root, or choose another -state-dir", dir, bare(err))
		}
		fi, err = os.Lstat(dir)
	}
	if err != nil {
		return fmt.Errorf("cannot look at state dir %s: %w; run as root, or choose another -state-dir", dir, bare(err))
	}
	switch {
	case fi.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("state dir %s is a symbolic link, which could be turned elsewhere; give the directory it points to as -state-dir", dir)
	case !fi.IsDir():
		return fmt.Errorf("state dir %s is not a directory; move it away, or choose another -state-dir", dir)
	case fi.Mode().Perm()&0o002 != 0:
		return fmt.Errorf("state dir %s can be written by everyone (mode %04o); run: chmod 0700 %s", dir, fi.Mode().Perm(), dir)
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("state dir %s belongs to uid %d, who could replace the state; run: chown %d %s", dir, st.Uid, os.Geteuid(), dir)
	}
	return nil
}

// makeDir makes dir with mode 0700, and what leads to it with 0755. Losing a
// race against another process that makes it is no error.
func makeDir(dir string) error {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}

// syncDir makes names made, renamed or removed in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
