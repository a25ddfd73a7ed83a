// Package names finds the failpoints of a source tree, so that tests can demand that
// each of them is passed.
package names

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
)

// importPath is the package whose calls are the failpoints.
const importPath = "pinfold/runtime/failpoint"

// kinds says what each of its functions makes.
var kinds = map[string]string{"Step": "step", "Get": "step", "Hit": "hit"}

// folders hold everything that touches the host or the state.
var folders = []string{"runtime", "reconcile"}

// Point is one failpoint in the source. Where a part of its name is not a literal, the
// name has a "*" for it.
type Point struct {
	Name string
	Kind string // "step" or "hit"
	At   token.Position
}

// Names maps the names of all failpoints below root, the top of the source tree, to
// "step" or "hit".
func Names(root string) (map[string]string, error) {
	points, err := Points(root)
	if err != nil {
		return nil, err
	}
	names := make(map[string]string, len(points))
	for _, p := range points {
		names[p.Name] = p.Kind
	}
	return names, nil
}

// Points lists them in the order of files and lines.
func Points(root string) ([]Point, error) {
	var points []Point
	fset := token.NewFileSet()
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return fs.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			found, err := pointsOf(fset, file)
			points = append(points, found...)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("cannot look for failpoints below %s: %w", folder, err)
		}
	}
	return points, nil
}

func pointsOf(fset *token.FileSet, file *ast.File) (points []Point, err error) {
	local, imported := localName(file)
	if !imported {
		return nil, nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || err != nil {
			return err == nil
		}
		kind := kindOf(call.Fun, local)
		if kind == "" {
			return true
		}
		at := fset.Position(call.Pos())
		name := literal(call.Args[0])
		if strings.Trim(name, "*.") == "" {
			err = fmt.Errorf("%s: no part of the failpoint's name is a literal", at)
		}
		points = append(points, Point{name, kind, at})
		return true
	})
	return points, err
}

// localName is what the file calls package failpoint.
func localName(file *ast.File) (name string, imported bool) {
	for _, i := range file.Imports {
		if path, err := strconv.Unquote(i.Path.Value); err == nil && path == importPath {
			if i.Name != nil {
				return i.Name.Name, true
			}
			return "failpoint", true
		}
	}
	return "", false
}

// kindOf tells what a call of fun makes, "" where it makes no failpoint.
func kindOf(fun ast.Expr, local string) string {
	if generic, ok := fun.(*ast.IndexExpr); ok {
		fun = generic.X
	}
	sel, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if pkg, ok := sel.X.(*ast.Ident); !ok || pkg.Name != local {
		return ""
	}
	return kinds[sel.Sel.Name]
}

// literal is the string that an expression is, with "*" for what only running it
// would tell.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return s
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return literal(e.X) + literal(e.Y)
		}
	case *ast.ParenExpr:
		return literal(e.X)
	}
	return "*"
}
