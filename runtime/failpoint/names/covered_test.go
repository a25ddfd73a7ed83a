package names

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// touching are the functions that change something on the host, by the names that
// go/types gives them.
var touching = set(
	// files
	"os.Mkdir", "os.MkdirAll", "os.MkdirTemp", "os.Remove", "os.RemoveAll", "os.Rename", "os.WriteFile", "os.Create", "os.CreateTemp",
	"os.Symlink", "os.Link", "os.Chown", "os.Lchown", "os.Chmod", "os.Chtimes", "os.Truncate", "os.CopyFS",
	"(*os.File).Write", "(*os.File).WriteString", "(*os.File).WriteAt", "(*os.File).ReadFrom", "(*os.File).Truncate", "(*os.File).Sync",
	"(*os.File).Chmod", "(*os.File).Chown", "io.Copy", "io.CopyBuffer", "io.CopyN",
	"U.Mkdir", "U.Mkdirat", "U.Rmdir", "U.Unlink", "U.Unlinkat", "U.Rename", "U.Renameat", "U.Renameat2", "U.Link", "U.Linkat",
	"U.Symlink", "U.Symlinkat", "U.Mknod", "U.Mknodat", "U.Mkfifo", "U.Mkfifoat", "U.Chmod", "U.Fchmod", "U.Fchmodat", "U.Chown",
	"U.Lchown", "U.Fchown", "U.Fchownat", "U.Utimes", "U.UtimesNano", "U.UtimesNanoAt", "U.Setxattr", "U.Lsetxattr", "U.Fsetxattr",
	"U.Removexattr", "U.Truncate", "U.Ftruncate", "U.Fallocate", "U.Fsync", "U.Write", "U.Pwrite",
	"U.IoctlSetInt", "U.IoctlLoopConfigure", "U.IoctlLoopSetStatus64",
	// mounts and namespaces
	"U.Mount", "U.Unmount", "U.MoveMount", "U.MountSetattr", "U.OpenTree", "U.Fsopen", "U.FsconfigCreate", "U.Fsmount", "U.PivotRoot",
	"U.Unshare", "U.Sethostname",
	// processes
	"U.Kill", "U.Tgkill", "U.PidfdSendSignal", "(*os.Process).Kill", "(*os.Process).Signal", "os.StartProcess",
	"(*os/exec.Cmd).Start", "(*os/exec.Cmd).Run", "(*os/exec.Cmd).Output", "(*os/exec.Cmd).CombinedOutput",
	"LC.Create", "(*LC.Container).Run", "(*LC.Container).Start", "(*LC.Container).Exec", "(*LC.Container).Signal", "(*LC.Container).Set",
	"(*LC.Container).Pause", "(*LC.Container).Resume", "(*LC.Container).Destroy", "(*LC.Process).Signal",
	// cgroups
	"(CG.Manager).Apply", "(CG.Manager).AddPid", "(CG.Manager).Set", "(CG.Manager).Freeze", "(CG.Manager).Destroy", "CG/fs2.CreateCgroupPath",
	"CG.WriteFile", "CG.WriteCgroupProc", "CG.RemovePath", "CG.EnterPid",
	// network
	"(*NL.Handle).ConntrackDeleteFilters", "NL.ConntrackDeleteFilters", "NL.ConntrackTableFlush",
	"(*github.com/google/nftables.Conn).Flush",
	"pinfold/runtime/proxy.Listen",
)

// wrappers touch the host for others of ours: what they do stands in no step, and each
// use of them must.
var wrappers = set(
	"HOST.replaceFile", "HOST.rewriteFile", "HOST.syncPath", "HOST.killGroup", "HOST.passFifo", "(*HOST.hold).release",
	"(*HOST.Host).putRecord", "(*HOST.Host).saveRecord", "(*HOST.Host).syncRecord", "(*HOST.Host).saveProcess",
	"(*HOST.cgroupTree).freeze", "(*HOST.cgroupTree).makeCounted", "(HOST.pidfd).forward", "NET.setSysctl",
	"HOST.attach", "HOST.attachTo", "HOST.cloneMount", "HOST.cloneMountAt", "HOST.adjustMount", "HOST.newMount",
	"(HOST.pidfd).send", "(HOST.pidfd).signal", "(HOST.pidfd).queue",
	"HOST/starter.Spawn", "HOST/starter.Within", "HOST/starter.reapThread", "HOST/starter.killChildren", "(*HOST/starter.Client).Start",
	"(*NET.route).change", "(*NET.route).addBridge", "(*NET.route).addVeth", "(*NET.route).deleteLink", "(*NET.route).set", "(*NET.route).setHairpin",
	"(*NET.route).addAddress", "(*NET.route).deleteAddress", "(*NET.route).setOwnRoute", "(*NET.route).setDefaultRoute",
	"(*NET.nfnetlink).transaction", "(*NET.rules).write", "(*NET.commits).apply",
)

// exempt are functions in which what touches the host stands in no step, and why.
var exempt = map[string]string{
	"(*HOST.cgroupTree).warm":   "moves this process to where it is",
	"(*HOST.tree).unpack":       "changes a thread that ends with it",
	"(*HOST.stage).run":         "changes a thread that ends with it",
	"(*HOST.Host).Info":         "a call that is refused for its arguments",
	"(*HOST.Host).punchesHoles": "a file without a name",
	"(*HOST.feed).run":          "the caller's streams",
	"(*HOST.drain).write":       "the caller's streams",
	"(*HOST.packer).file":       "the caller's archive",
	"(*HOST.Host).openOf":       "opens what proc shows, with flags of its callers",
	"HOST.reopen":               "opens what is open, with flags of its callers",
	"NET.newRules":              "says how commits write; whoever applies a change is in a step",
	"HOST/starter.start":        "in the starter, another program; who asks it is in a step",
	"HOST/boot.hold":            "in a sandbox's init, another process; who lets it go is in a step",
	"HOST/memfd.Sealed":         "a file in this process's memory",
	"(HOST/checkup.Here).Try":   "no signal, to itself",
	"HOST/checkup.apart":        "changes a thread that ends with it",
	"HOST/checkup.hold":         "a process that ends at once",
	"HOST/checkup.overlay":      "in a mount namespace that ends with its thread",
	"HOST/checkup.tables":       "in a network namespace that ends with its thread",
}

// packages are those that touch the host.
var packages = []string{"HOST", "HOST/starter", "HOST/boot", "HOST/memfd", "HOST/pinit", "HOST/checkup", "NET"}

func set(names ...string) map[string]bool {
	m := map[string]bool{}
	for _, n := range names {
		m[long(n)] = true
	}
	return m
}

// long spells a name out.
func long(name string) string {
	return abbreviations.Replace(name)
}

var abbreviations = strings.NewReplacer(
	"U.", "golang.org/x/sys/unix.", "LC.", "github.com/opencontainers/runc/libcontainer.", "CG.", "github.com/opencontainers/cgroups.",
	"CG/", "github.com/opencontainers/cgroups/", "NL.", "github.com/vishvananda/netlink.", "HOST", "pinfold/runtime/host", "NET", "pinfold/runtime/network",
)

// TestWhatTouchesTheHostIsInAStep: whoever adds such a call gives it a failpoint.
func TestWhatTouchesTheHostIsInAStep(t *testing.T) {
	exports := exportData(t)
	used := map[string]bool{}
	for _, pkg := range packages {
		pkg = long(pkg)
		files, err := filepath.Glob(filepath.Join(top, strings.TrimPrefix(pkg, "pinfold/"), "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no source of %s: %v", pkg, err)
		}
		files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
		for _, c := range complaints(t, exports, pkg, files, used) {
			t.Error(c)
		}
	}
	for f := range exempt {
		if !used[long(f)] {
			t.Errorf("%s needs no exemption", f)
		}
	}
	for w := range wrappers {
		if !used[w] {
			t.Errorf("wrapper %s does not exist or is not used", w)
		}
	}
}

// TestUncoveredCallsAreSeen: the check finds what it is for.
func TestUncoveredCallsAreSeen(t *testing.T) {
	got := complaints(t, exportData(t), "uncovered", []string{"testdata/uncovered.go"}, map[string]bool{})
	source, err := os.ReadFile("testdata/uncovered.go")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i, line := range strings.Split(string(source), "\n") {
		if _, what, ok := strings.Cut(line, "// want: "); ok {
			want = append(want, fmt.Sprintf("testdata/uncovered.go:%d: %s", i+1, what))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// complaints type-checks a package and lists, in order, what of it touches the host
// outside of a step, and which steps do not touch it exactly once. used gets the
// exemptions and wrappers that were of use.
func complaints(t *testing.T, exports func(path string) (io.ReadCloser, error), pkg string, paths []string, used map[string]bool) (out []string) {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	for _, p := range paths {
		// Those of this machine, and without the tag.
		if matches, err := build.Default.MatchFile(filepath.Dir(p), filepath.Base(p)); err != nil || !matches {
			continue
		}
		f, err := parser.ParseFile(fset, p, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", exports), FakeImportC: true}
	if _, err := config.Check(pkg, fset, files, info); err != nil {
		t.Fatalf("%s: %v", pkg, err)
	}
	for _, f := range files {
		c := checker{fset: fset, info: info, used: used}
		c.failpoints, _ = localName(f)
		for _, d := range f.Decls {
			c.declaration(d)
		}
		slices.SortStableFunc(c.out, func(a, b complaint) int { return a.at.Line - b.at.Line })
		for _, c := range c.out {
			out = append(out, c.String())
		}
	}
	return out
}

type checker struct {
	fset       *token.FileSet
	info       *types.Info
	failpoints string // what the file calls package failpoint
	used       map[string]bool

	out []complaint
}

type complaint struct {
	at   token.Position
	text string
}

func (c complaint) String() string { return fmt.Sprintf("%s:%d: %s", c.at.Filename, c.at.Line, c.text) }

func (c *checker) complain(at ast.Node, format string, args ...any) {
	c.out = append(c.out, complaint{c.fset.Position(at.Pos()), fmt.Sprintf(format, args...)})
}

func (c *checker) declaration(d ast.Decl) {
	name := ""
	if f, ok := d.(*ast.FuncDecl); ok {
		name = c.info.Defs[f.Name].(*types.Func).FullName()
		if wrappers[name] {
			c.touches(d) // for what else it wraps
			return
		}
	}
	found := c.touches(d)
	for f, why := range exempt {
		if long(f) == name && len(found) > 0 && why != "" {
			c.used[name] = true
			return
		}
	}
	for _, n := range found {
		c.complain(n, "%s stands in no failpoint.Step", c.name(n))
	}
}

// touches lists what touches the host below n, outside of steps, and looks at the
// steps on the way.
func (c *checker) touches(n ast.Node) (found []*ast.Ident) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if c.failpoints != "" && kindOf(n.Fun, c.failpoints) == "step" && len(n.Args) == 2 {
				if times := len(c.touches(n.Args[1])); times != 1 {
					c.complain(n, "the step touches the host in %d places, not one", times)
				}
				return false
			}
			if c.onlyOpens(n) {
				for _, a := range n.Args {
					found = append(found, c.touches(a)...)
				}
				return false
			}
		case *ast.Ident:
			name := c.name(n)
			if _, opens := opening[name]; opens || touching[name] || wrappers[name] {
				found = append(found, n)
			}
			if wrappers[name] {
				c.used[name] = true
			}
		}
		return true
	})
	return found
}

// name is that of the function an identifier stands for, "" for anything else.
func (c *checker) name(id *ast.Ident) string {
	if f, ok := c.info.Uses[id].(*types.Func); ok {
		return f.Origin().FullName()
	}
	return ""
}

// opening says which argument holds the flags.
var opening = map[string]int{
	"os.OpenFile": 1, "golang.org/x/sys/unix.Open": 1, "golang.org/x/sys/unix.Openat": 2,
}

// onlyOpens tells whether a call opens what is there already, and leaves it as it is.
func (c *checker) onlyOpens(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	i, ok := opening[c.name(sel.Sel)]
	if !ok {
		return false
	}
	value := c.info.Types[call.Args[i]].Value
	if value == nil {
		return false // only running it would tell
	}
	flags, exact := constant.Int64Val(value)
	return exact && flags&(unix.O_CREAT|unix.O_TRUNC) == 0
}

// exportData returns what the compiler has written of every package that those to be
// checked import.
func exportData(t *testing.T) func(path string) (io.ReadCloser, error) {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export"}
	for _, p := range packages {
		args = append(args, long(p))
	}
	cmd := exec.Command("go", args...)
	var words bytes.Buffer
	cmd.Stderr = &words
	data, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, words.String())
	}
	files := map[string]string{}
	for dec := json.NewDecoder(bytes.NewReader(data)); ; {
		var p struct{ ImportPath, Export string }
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		files[p.ImportPath] = p.Export
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }
}
