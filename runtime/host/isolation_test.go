package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// TestRootInsideSeesNothingOfTheHost plays an attacker who is root in a sandbox
// on the host image, with Docker's capabilities.
func TestRootInsideSeesNothingOfTheHost(t *testing.T) {
	for name, ids := range map[string]runtime.IDRange{
		"user namespace": {Base: 1 << 20, Size: 65536},
		"none":           {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			in := w.instance(1, "exec sleep 1000")
			in.IDs = ids
			w.must(os.WriteFile(filepath.Join(w.h.opts.StateDir, "secret"), []byte("s3cr3t"), 0o644))
			w.start(in)

			denied := map[string]string{
				"shadow":                  "cat /etc/shadow",
				"shadow's backup":         "cat /etc/shadow-",
				"gshadow":                 "cat /etc/gshadow",
				"sudoers":                 "cat /etc/sudoers",
				"ssh host keys":           "cat /etc/ssh/ssh_host_*_key",
				"root's home":             "ls -A /root | grep .",
				"homes":                   "ls -A /home | grep .",
				"state directory":         "cat " + w.h.opts.StateDir + "/secret",
				"state directory's name":  "ls -d " + w.h.opts.StateDir,
				"run directory":           "ls -d " + w.h.opts.RunDir,
				"the host's /tmp":         "ls -A /tmp | grep .",
				"the host's /run":         "ls -A /run | grep -v '^mount$' | grep .", // mount(8) makes that one itself
				"the host's logs":         "ls -A /var/log | grep .",
				"the host's cgroups":      "ls -A /sys/fs/cgroup | grep .",
				"PID 1's program":         "cat /proc/1/exe",
				"PID 1's descriptors":     "readlink /proc/1/fd/4",
				"PID 1's outcome file":    "echo exit 0 0 0 1 > /proc/1/fd/4",
				"PID 1's memory":          "head -c 1 /proc/1/mem",
				"PID 1's environment":     "cat /proc/1/environ",
				"through PID 1's root":    "ls /proc/1/root/",
				"a block device node":     "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk",
				"a memory device node":    "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem",
				"a mount":                 "mount -t tmpfs none /mnt",
				"a bind mount":            "mount --bind / /mnt",
				"lifting a mask":          "umount /proc/keys",
				"lifting a file":          "umount /etc/hosts",
				"writing a given file":    "echo x >> /etc/hosts",
				"remounting":              "mount -o remount,rw /sys",
				"a namespace of its own":  "unshare -m true",
				"a user namespace":        "unshare -U true",
				"the kernel's switches":   "echo 1 > /proc/sys/kernel/sysrq",
				"sysrq":                   "echo h > /proc/sysrq-trigger",
				"kernel keys":             "grep . /proc/keys",
				"kernel memory":           "test $(head -c 1 /proc/kcore | wc -c) = 1",
				"a new host name":         "hostname other",
				"making files in /dev":    "touch /dev/x",
				"a file hidden, remade":   "touch /etc/shadow && rm /etc/shadow && cat /etc/shadow",
				"a directory hidden":      "rmdir /etc/ssh && cat /etc/ssh/ssh_host_rsa_key",
				"a renamed parent":        "mv /etc /etc2 && cat /etc2/shadow",
				"overlay's attributes":    "setfattr -n trusted.overlay.opaque -v n /root && ls -A /root | grep .",
				"entering PID 1's mounts": "nsenter -t 1 -m ls /",
			}
			for what, script := range denied {
				if code, out := w.sh(in.ID, script); code == 0 {
					t.Errorf("%s: `%s` worked: %s", what, script, out)
				}
			}

			_, status := w.sh(in.ID, "cat /proc/self/status")
			for _, line := range []string{"NoNewPrivs:\t1", "Seccomp:\t2", "Seccomp_filters:\t1"} {
				if !strings.Contains(status, line+"\n") {
					t.Errorf("no %q in\n%s", line, status)
				}
			}
			want := fmt.Sprintf("%016x", capabilityMask(in.Capabilities))
			for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
				if !strings.Contains(status, set+":\t"+want+"\n") {
					t.Errorf("%s is not %s in\n%s", set, want, status)
				}
			}
			if !strings.Contains(status, "CapAmb:\t0000000000000000\n") {
				t.Errorf("ambient capabilities in\n%s", status)
			}

			s := w.state(in.ID)
			for _, ns := range []string{"mnt", "pid", "ipc", "uts", "net", "cgroup"} {
				if sameNamespace(t, s.Process.PID, ns) {
					t.Errorf("the %s namespace is the host's", ns)
				}
			}
			var st unix.Stat_t
			w.must(unix.Stat(pidPath(s.Process.PID, ""), &st))
			_, idmap := w.sh(in.ID, "cat /proc/self/uid_map")
			if got, want := strings.Fields(idmap), []string{"0", fmt.Sprint(ids.Base), "65536"}; ids.Size > 0 && strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("uid map %v, want %v", got, want)
			}
			if ids.Size > 0 && sameNamespace(t, s.Process.PID, "user") {
				t.Error("the user namespace is the host's")
			}

			// Nothing mounted inside comes from the host but what was asked for.
			_, table := w.sh(in.ID, "cat /proc/self/mountinfo")
			for line := range strings.Lines(table) {
				f := strings.Fields(line)
				inside := f[4]
				if inside != "/" && !within("/proc", inside) && !within("/sys", inside) && !within("/dev", inside) &&
					inside != "/etc/hosts" && inside != "/etc/hostname" && inside != "/etc/resolv.conf" {
					t.Errorf("unexpected mount: %s", line)
				}
			}
		})
	}
}

// TestPtraceCapabilityDoesNotOpenPID1 gives a sandbox what Docker does not.
func TestPtraceCapabilityDoesNotOpenPID1(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exec sleep 1000")
	in.Capabilities = append([]string{"CAP_SYS_PTRACE"}, dockerCapabilities...)
	in.Seccomp = "unconfined"
	w.start(in)
	if code, out := w.sh(in.ID, "grep Seccomp: /proc/self/status"); code != 0 || !strings.Contains(out, "\t0") {
		t.Errorf("unconfined sandbox: %d %q", code, out)
	}
	for _, script := range []string{"readlink /proc/1/fd/4", "cat /proc/1/exe", "echo exit 0 0 0 1 > /proc/1/fd/4", "head -c1 /proc/1/mem"} {
		if code, out := w.sh(in.ID, script); code == 0 {
			t.Errorf("`%s` worked: %s", script, out)
		}
	}
}

// TestOutsideCannotBeForged: a workload queues a signal to PID 1 that claims to
// come from outside.
func TestOutsideCannotBeForged(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "")
	// rt_sigqueueinfo(1, SIGTERM, {si_signo, si_errno, si_code = SI_QUEUE, si_pid = 0})
	in.Command = []string{"perl", "-e", `my $i = pack("iii x116", 15, 0, -1); syscall(129, 1, 15, $i) == 0 or die "refused: $!"; sleep 1000`}
	p := w.start(in)
	w.must(w.h.WaitExit(w.ctx, in.ID, p))
	if s := w.state(in.ID); s.Outcome == nil || s.Outcome.Signal != int(unix.SIGTERM) || s.Outcome.Outside != 0 {
		t.Errorf("outcome %+v, log %q", s.Outcome, w.log(in.ID))
	}
}

// TestHostMountTableStaysAsItIs: of a running sandbox the host sees one mount,
// the bound network namespace.
func TestHostMountTableStaysAsItIs(t *testing.T) {
	w := newWorld(t)
	w.must(w.h.EnsureVolume(w.ctx, runtime.Volume{ID: "data"}))
	in := w.instance(1, "exec sleep 1000")
	in.Mounts = []runtime.Mount{{Kind: "volume", Source: "data", Path: "/data"}, {Kind: "tmpfs", Path: "/data/scratch"}}
	w.start(in)
	table, err := os.ReadFile("/proc/self/mountinfo")
	w.must(err)
	var ours []string
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, w.dir+"/") {
			ours = append(ours, line)
		}
	}
	if len(ours) != 1 || !strings.Contains(ours[0], "nsfs") || !strings.Contains(ours[0], w.h.netns(in.ID)) {
		t.Errorf("the host sees: %q", ours)
	}
}

func sameNamespace(t *testing.T, pid int, ns string) bool {
	t.Helper()
	ours, err := os.Readlink("/proc/self/ns/" + ns)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.Readlink(pidPath(pid, "ns/"+ns))
	if err != nil {
		t.Fatal(err)
	}
	return ours == theirs
}

func capabilityMask(names []string) (mask uint64) {
	number := map[string]uint{
		"CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_FSETID": unix.CAP_FSETID, "CAP_FOWNER": unix.CAP_FOWNER,
		"CAP_MKNOD": unix.CAP_MKNOD, "CAP_NET_RAW": unix.CAP_NET_RAW, "CAP_SETGID": unix.CAP_SETGID, "CAP_SETUID": unix.CAP_SETUID,
		"CAP_SETFCAP": unix.CAP_SETFCAP, "CAP_SETPCAP": unix.CAP_SETPCAP, "CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
		"CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT, "CAP_KILL": unix.CAP_KILL, "CAP_AUDIT_WRITE": unix.CAP_AUDIT_WRITE,
	}
	for _, n := range names {
		mask |= 1 << number[n]
	}
	return mask
}
