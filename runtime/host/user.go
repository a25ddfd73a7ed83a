package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// identity is a user in numbers, as seen inside.
type identity struct {
	uid, gid int
	groups   []int
	home     string
}

// resolveUser looks up spec in the image's own passwd and group files.
func resolveUser(root *rootDir, spec string, ids runtime.IDRange) (identity, error) {
	read := func(path string) (io.ReadCloser, error) {
		f, err := root.open(path, os.O_RDONLY|unix.O_NONBLOCK) // a workload may have put a pipe there
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the image's %s: %w", path, err)
		}
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
			f.Close()
			return nil, fmt.Errorf("the image's %s is not a regular file", path)
		}
		return f, nil
	}
	var readers [2]io.Reader
	for i, path := range []string{"/etc/passwd", "/etc/group"} {
		f, err := read(path)
		if err != nil {
			return identity{}, err
		}
		if f != nil {
			defer f.Close()
			readers[i] = io.LimitReader(f, 4<<20)
		}
	}
	u, err := user.GetExecUser(spec, &user.ExecUser{Home: "/"}, readers[0], readers[1])
	if err != nil {
		return identity{}, fmt.Errorf("user %q: %w; give numbers, or a name of the image's /etc/passwd", spec, err)
	}
	id := identity{uid: u.Uid, gid: u.Gid, groups: u.Sgids, home: u.Home}
	if ids.Size > 0 {
		for _, n := range append([]int{id.uid, id.gid}, id.groups...) {
			if n >= int(ids.Size) {
				return identity{}, fmt.Errorf("user %q: id %d is beyond the sandbox's %d ids", spec, n, ids.Size)
			}
		}
	}
	return id, nil
}
