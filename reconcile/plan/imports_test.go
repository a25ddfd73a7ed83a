package plan

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The planner cannot reach the host, the store or the clock.
func TestPurity(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{join .Imports "\n"}}`, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	imports := strings.Fields(string(out))
	if len(imports) < 5 {
		t.Fatalf("go list gives %q", out)
	}
	for _, i := range imports {
		switch {
		case i == "net/netip":
		case i == "os", strings.HasPrefix(i, "os/"), i == "net", strings.HasPrefix(i, "net/"), i == "syscall", i == "io/fs",
			strings.HasPrefix(i, "math/rand"), strings.HasPrefix(i, "crypto/"), strings.HasPrefix(i, "golang.org/x/sys"),
			i == "pinfold/runtime", strings.HasPrefix(i, "pinfold/runtime/"), i == "pinfold/state", strings.HasPrefix(i, "pinfold/state/"), i == "pinfold/reconcile":
			t.Errorf("imports %s", i)
		}
	}
	deps, err := exec.Command("go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list -deps: %v\n%s", err, deps)
	}
	for d := range strings.FieldsSeq(string(deps)) {
		for _, forbidden := range []string{"pinfold/runtime", "pinfold/state", "pinfold/reconcile"} {
			if d == forbidden || (strings.HasPrefix(d, forbidden+"/") && d != "pinfold/reconcile/plan") {
				t.Errorf("depends on %s", d)
			}
		}
	}

	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	clocks := map[string]bool{"Now": true, "Since": true, "Until": true, "After": true, "AfterFunc": true, "Sleep": true, "NewTimer": true, "NewTicker": true, "Tick": true}
	parsed := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed++
		tree, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if p, ok := s.X.(*ast.Ident); ok && p.Name == "time" && clocks[s.Sel.Name] {
					t.Errorf("%s uses time.%s", f.Name(), s.Sel.Name)
				}
			}
			return true
		})
	}
	if parsed < 10 {
		t.Errorf("only %d files parsed", parsed)
	}
}
