package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"pinfold/testdata/lab/wire"
)

// packages are the machine's: a kernel, what pinfold's workloads and tests run, and
// what they look at the host with.
var packages = []string{"linux-image-cloud-amd64", "kmod", "iproute2", "nftables", "procps", "python3", "util-linux"}

// compiler is for the tests that build a program of their own.
var compiler = []string{"gcc", "libc6-dev"}

const diskSize = "4G" // sparse

// makeImage makes the machine's disk: a root of the distribution's packages, kept
// from run to run, with this run's programs in it.
func (l *lab) makeImage(ctx context.Context, parts string, suites []wire.Suite, withCompiler bool) error {
	list := packages
	if withCompiler {
		list = append(list, compiler...)
	}
	root, err := l.root(ctx, list)
	if err != nil {
		return err
	}
	kernels, _ := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*"))
	initrds, _ := filepath.Glob(filepath.Join(root, "boot", "initrd.img-*"))
	if len(kernels) != 1 || len(initrds) != 1 {
		return fmt.Errorf("the machine's root has %d kernels and %d initrds, not one of each; remove %s and try again", len(kernels), len(initrds), root)
	}
	l.kernel, l.initrd = kernels[0], initrds[0]
	if err := furnish(root, parts, suites); err != nil {
		return err
	}
	l.image = filepath.Join(l.dir, "disk.img")
	if err := os.RemoveAll(l.image); err != nil {
		return err
	}
	return run(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-d", root, l.image, diskSize)
}

// root is a directory with the packages, made once for each list of them.
func (l *lab) root(ctx context.Context, list []string) (string, error) {
	// Where this machine gets its own packages from, other vendors' left out.
	sources, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)",
		"Created-By: Packages", "Origin: Debian").Output()
	if err != nil || len(sources) == 0 {
		return "", fmt.Errorf("apt knows no package lists of Debian here; run apt-get update: %w", err)
	}
	release, err := codename()
	if err != nil {
		return "", err
	}
	include := strings.Join(list, ",")
	root := filepath.Join(l.dir, fmt.Sprintf("root-%x", sha256.Sum256(append([]byte(include), sources...)))[:len("root-")+8])
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	fmt.Fprintln(l.out, "making the machine's root of the distribution's packages, once")
	half := root + ".new"
	if err := os.RemoveAll(half); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "mmdebstrap", "--quiet", "--variant=minbase", "--include="+include, release, half, "-")
	cmd.Stdin = bytes.NewReader(sources)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("mmdebstrap: %w\n%s", err, out)
	}
	return root, os.Rename(half, root)
}

// codename is this machine's release of the distribution.
func codename() (string, error) {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			return name, nil
		}
	}
	return "", errors.New("/etc/os-release names no release; the lab needs Debian")
}

// furnish puts this run's programs into the root.
func furnish(root, parts string, suites []wire.Suite) error {
	for _, name := range []string{"guest", "pinfold"} {
		if err := copyFile(filepath.Join(parts, name), filepath.Join(root, "usr/local/bin", name)); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(filepath.Join(root, wire.SuitesDir)); err != nil {
		return err
	}
	for _, s := range suites {
		dir := filepath.Join(root, wire.SuitesDir, s.Name)
		if err := copyFile(filepath.Join(parts, wire.Program(s.Name)), filepath.Join(dir, "test")); err != nil {
			return err
		}
		data := filepath.Join(s.Name, "testdata")
		if _, err := os.Stat(data); err != nil {
			continue // it has none
		}
		if err := os.CopyFS(filepath.Join(dir, "testdata"), os.DirFS(data)); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o755)
}

func run(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}
