package conformance

import (
	"context"
	"path"
	"slices"
	"strings"

	"pinfold/runtime"
)

var files = []test{
	{"the writable layer survives stop, and goes with remove", func(w *world) {
		in := w.instance(w.Commands.Forever)
		w.up(in)
		w.writes(in.ID, "/kept", "yes")
		w.stop(in.ID)
		w.up(in)
		w.reads(in.ID, "/kept", "yes")
		w.must(w.h.Remove(w.ctx, in.ID))
		w.up(in)
		w.absent(in.ID, "/kept")
	}},
	{"no user namespace works as well", func(w *world) {
		in := w.instance(w.Commands.Forever)
		in.IDs = runtime.IDRange{}
		w.up(in)
		w.writes(in.ID, "/kept", "yes")
		w.stop(in.ID)
		w.up(in)
		w.reads(in.ID, "/kept", "yes")
		if s := w.state(in.ID); len(s.Missing) > 0 {
			w.Errorf("it lacks %q", s.Missing)
		}
	}},
	{"layers are apart", func(w *world) {
		one, two := w.instance(w.Commands.Forever), w.instance(w.Commands.Forever)
		w.up(one)
		w.up(two)
		w.writes(one.ID, "/mine", "yes")
		w.absent(two.ID, "/mine")
	}},
	{"a new instance takes over layer and log", func(w *world) {
		old := w.instance(w.Commands.OnSignal(15, "/kept", "yes"))
		w.ready(old)
		w.stop(old.ID)
		in := w.instance(w.Commands.Forever)
		in.Mark = old.Mark
		in.IDs = old.IDs
		in.CarryFrom = old.ID
		p := w.up(in)
		w.reads(in.ID, "/kept", "yes")
		if log := w.log(in.ID); !strings.HasPrefix(log, "ready\n") {
			w.Errorf("the log is %q", log)
		}
		if s := w.state(old.ID); s.Layer || s.Alive {
			w.Errorf("the old one: %+v", s)
		}
		if again := w.create(in); again != p {
			w.Errorf("created again: %+v, before %+v", again, p)
		}
		w.must(w.h.Remove(w.ctx, old.ID))
		w.writes(in.ID, "/more", "too")
		w.stop(in.ID)
		w.up(in)
		w.reads(in.ID, "/kept", "yes")
		w.reads(in.ID, "/more", "too")
	}},
	{"a failed takeover loses nothing", func(w *world) {
		old := w.instance(w.Commands.Forever)
		w.up(old)
		w.writes(old.ID, "/kept", "yes")
		w.stop(old.ID)
		in := w.instance(w.Commands.Forever)
		in.Mark = old.Mark
		in.IDs = old.IDs
		in.CarryFrom = old.ID
		in.Mounts = []runtime.Mount{{Kind: "volume", Source: randomHex(12), Path: "/v"}}
		_, err := w.h.Create(w.ctx, in)
		w.fails("Create with a volume that does not exist", err, nil)
		in.Mounts = nil
		w.up(in)
		w.reads(in.ID, "/kept", "yes")
	}},
	{"nothing to take over is no error", func(w *world) {
		in := w.instance(w.Commands.Forever)
		in.CarryFrom = randomHex(12)
		w.up(in)
		if s := w.state(in.ID); !s.Alive || !s.Layer {
			w.Errorf("it is %+v", s)
		}
	}},
	{"the log has both outputs and outlives the process", func(w *world) {
		in := w.instance(w.Commands.Print("to out", "to err"))
		w.exits(in.ID, w.up(in))
		w.stop(in.ID)
		log := w.log(in.ID)
		if strings.Count(log, "to out\n") != 1 || strings.Count(log, "to err\n") != 1 {
			w.Errorf("the log is %q", log)
		}
		_, err := w.h.OpenLog(w.ctx, randomHex(12))
		w.fails("OpenLog of an unknown one", err, runtime.ErrNotFound)
	}},
	{"declared files are there and cannot be changed", func(w *world) {
		in := w.instance(w.Commands.Forever)
		in.Files = []runtime.File{{Path: "/etc/declared.conf", Content: []byte("a = 1\n"), Mode: 0o644}}
		w.up(in)
		w.reads(in.ID, "/etc/declared.conf", "a = 1\n")
		if code, _ := w.run(in.ID, w.Commands.Write("/etc/declared.conf", "a = 2")); code == 0 {
			w.Error("the workload wrote to it")
		}
		w.reads(in.ID, "/etc/declared.conf", "a = 1\n")
	}},
	{"a read-only root", func(w *world) {
		in := w.instance(w.Commands.Forever)
		in.ReadOnlyRoot = true
		in.Mounts = []runtime.Mount{{Kind: "tmpfs", Path: "/scratch"}}
		w.up(in)
		if code, _ := w.run(in.ID, w.Commands.Write("/f", "x")); code == 0 {
			w.Error("the root can be written")
		}
		w.writes(in.ID, "/scratch/f", "x")
		w.reads(in.ID, "/scratch/f", "x")
	}},
	{"a host directory, read-only", func(w *world) {
		in := w.instance(w.Commands.Forever)
		dir := w.HostDir(w.T, "f", "from the host")
		in.Mounts = []runtime.Mount{{Kind: "host", Source: dir, Root: dir, Path: "/host", ReadOnly: true}}
		w.up(in)
		w.reads(in.ID, "/host/f", "from the host")
		if code, _ := w.run(in.ID, w.Commands.Write("/host/f", "y")); code == 0 {
			w.Error("it can be written")
		}
		w.must(w.h.Remove(w.ctx, in.ID))
		w.up(in)
		w.reads(in.ID, "/host/f", "from the host")
	}},
	{"a host path does not leave the directory it was allowed with", func(w *world) {
		in := w.instance(w.Commands.Forever)
		dir := w.HostDir(w.T, "f", "from the host")
		above := path.Dir(dir)
		w.HostLink(w.T, dir, "around", "../"+path.Base(dir))
		w.HostLink(w.T, dir, "out", "/etc")
		for source, root := range map[string]string{
			dir + "/around": dir, // leads out, and back in
			dir + "/out":    dir, // an absolute link
			dir + "/out/x":  dir, // on the way
			dir:             dir + "/f",
			dir + "/../x":   dir, // no link at all
			above + "/x":    "",
		} {
			in.Mounts = []runtime.Mount{{Kind: "host", Source: source, Root: root, Path: "/host"}}
			_, err := w.h.Create(w.ctx, in)
			if err == nil || !strings.Contains(err.Error(), "allow_host_paths") {
				w.Errorf("%s, allowed with %q: %v; want an error that names allow_host_paths", source, root, err)
			}
		}
		// The same link stays below a wider directory.
		in.Mounts = []runtime.Mount{{Kind: "host", Source: dir + "/around", Root: above, Path: "/host"}}
		w.up(in)
		w.reads(in.ID, "/host/f", "from the host")
		w.stop(in.ID)
		// Where the allowed directory is a link, that is the administrator's word.
		w.HostLink(w.T, dir, "named", above)
		in.Mounts = []runtime.Mount{{Kind: "host", Source: dir + "/named/" + path.Base(dir), Root: dir + "/named", Path: "/host"}}
		w.up(in)
		w.reads(in.ID, "/host/f", "from the host")
	}},
	{"what the host image is said to hide is hidden", func(w *world) {
		src := runtime.ImageSource{Kind: "host"}
		hidden, err := w.h.HiddenBy(w.ctx, src)
		w.must(err)
		if !slices.Contains(hidden.Absent, "/etc/shadow") || !slices.Contains(hidden.Empty, "/root") || !slices.IsSorted(hidden.Absent) || !slices.IsSorted(hidden.Empty) {
			w.Errorf("it hides %+v", hidden)
		}
		in := w.instance(w.Commands.Forever)
		in.Image, err = w.h.PrepareImage(w.ctx, src)
		w.must(err)
		w.up(in)
		w.absent(in.ID, "/etc/shadow")
		dir := runtime.ImageSource{Kind: "dir", Path: w.HostDir(w.T, "f", "x")}
		if h, err := w.h.HiddenBy(w.ctx, dir); err != nil || len(h.Absent)+len(h.Empty) > 0 {
			w.Errorf("a directory hides %+v, %v", h, err)
		}
	}},
	{"a tmpfs is empty at each start", func(w *world) {
		in := w.instance(w.Commands.Forever)
		in.Mounts = []runtime.Mount{{Kind: "tmpfs", Path: "/scratch", Size: 1 << 20}}
		w.up(in)
		w.writes(in.ID, "/scratch/f", "x")
		w.stop(in.ID)
		w.up(in)
		w.absent(in.ID, "/scratch/f")
	}},
}

var volumes = []test{
	{"it is shared, and outlives its users", func(w *world) {
		v := w.volume()
		one, two := w.instance(w.Commands.Forever), w.instance(w.Commands.Forever)
		mount := []runtime.Mount{{Kind: "volume", Source: v, Path: "/data"}}
		one.Mounts, two.Mounts = mount, mount
		w.up(one)
		w.up(two)
		w.writes(one.ID, "/data/f", "shared")
		w.reads(two.ID, "/data/f", "shared")
		w.must(w.h.Remove(w.ctx, one.ID))
		w.must(w.h.Remove(w.ctx, two.ID))
		w.must(w.h.EnsureVolume(w.ctx, runtime.Volume{ID: v}))
		three := w.instance(w.Commands.Forever)
		three.Mounts = mount
		w.up(three)
		w.reads(three.ID, "/data/f", "shared")
	}},
	{"a read-only mount", func(w *world) {
		v := w.volume()
		in := w.instance(w.Commands.Forever)
		in.Mounts = []runtime.Mount{{Kind: "volume", Source: v, Path: "/data"}}
		w.up(in)
		w.writes(in.ID, "/data/f", "x")
		w.stop(in.ID)
		in.Mounts[0].ReadOnly = true
		w.up(in)
		w.reads(in.ID, "/data/f", "x")
		if code, _ := w.run(in.ID, w.Commands.Write("/data/f", "y")); code == 0 {
			w.Error("it can be written")
		}
		w.reads(in.ID, "/data/f", "x")
	}},
	{"what it takes is counted", func(w *world) {
		v, other := w.volume(), w.volume()
		empty, err := w.h.VolumeUsage(w.ctx, v)
		w.must(err)
		if empty.Files != 0 || empty.Partial || empty.Bytes > 1<<16 || empty.Path == "" {
			w.Errorf("empty, it is %+v", empty)
		}
		in := w.instance(w.Commands.Forever)
		in.Mounts = []runtime.Mount{{Kind: "volume", Source: v, Path: "/data"}, {Kind: "volume", Source: other, Path: "/other"}}
		w.up(in)
		text := strings.Repeat("0123456789abcdef", 4096)
		w.writes(in.ID, "/data/f", text)
		w.writes(in.ID, "/data/g", "x")
		w.writes(in.ID, "/elsewhere", text)
		used, err := w.h.VolumeUsage(w.ctx, v)
		w.must(err)
		if more := used.Bytes - empty.Bytes; used.Files != 2 || used.Partial || more < int64(len(text)) || more > 1<<20 || used.Path != empty.Path {
			w.Errorf("with %d bytes in two files it is %+v, empty %+v", len(text)+1, used, empty)
		}
		if u, err := w.h.VolumeUsage(w.ctx, other); err != nil || u.Files != 0 || u.Bytes != empty.Bytes || u.Path == used.Path {
			w.Errorf("the other is %+v, %v", u, err)
		}
		ended, cancel := context.WithCancel(w.ctx)
		cancel()
		_, err = w.h.VolumeUsage(ended, v)
		w.fails("VolumeUsage after the end", err, context.Canceled)
		w.must(w.h.Remove(w.ctx, in.ID))
		w.must(w.h.RemoveVolume(w.ctx, v))
		_, err = w.h.VolumeUsage(w.ctx, v)
		w.fails("VolumeUsage of a removed one", err, runtime.ErrNotFound)
	}},
	{"in use it stays, unused it goes with its data", func(w *world) {
		v := w.volume()
		in := w.instance(w.Commands.Forever)
		in.Mounts = []runtime.Mount{{Kind: "volume", Source: v, Path: "/data"}}
		w.create(in)
		w.fails("RemoveVolume under a created one", w.h.RemoveVolume(w.ctx, v), nil)
		w.must(w.h.Start(w.ctx, in.ID))
		w.writes(in.ID, "/data/f", "x")
		w.fails("RemoveVolume under a running one", w.h.RemoveVolume(w.ctx, v), nil)
		w.must(w.h.Pause(w.ctx, in.ID))
		w.fails("RemoveVolume under a frozen one", w.h.RemoveVolume(w.ctx, v), nil)
		w.must(w.h.Resume(w.ctx, in.ID))
		w.reads(in.ID, "/data/f", "x")
		w.stop(in.ID)
		for range 2 {
			w.must(w.h.RemoveVolume(w.ctx, v))
		}
		o, err := w.h.Observe(w.ctx)
		w.must(err)
		if o.Volumes[v] {
			w.Error("it is still seen")
		}
		w.must(w.h.EnsureVolume(w.ctx, runtime.Volume{ID: v}))
		if o, err = w.h.Observe(w.ctx); err != nil || !o.Volumes[v] {
			w.Errorf("made again, it is not seen: %v, %v", o.Volumes, err)
		}
		w.up(in)
		w.absent(in.ID, "/data/f")
	}},
}
