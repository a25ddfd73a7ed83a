package names

import (
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"testing"
)

const top = "../../.."

func TestNamesAreRead(t *testing.T) {
	const source = `package p
import (
	"os"
	fp "pinfold/runtime/failpoint"
)
func f(op string) {
	fp.Step("a.file.remove", func() error { return os.Remove("x") })
	v, err := fp.Get[int]("a.file.open", open)
	fp.Hit("a." + string(op) + ".done")
	failpoint.Hit("no.failpoint.of.ours")
}`
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	points, err := pointsOf(fset, file)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, p := range points {
		got[p.Name] = p.Kind
	}
	want := map[string]string{"a.file.remove": "step", "a.file.open": "step", "a.*.done": "hit"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestEachNameStandsInOnePlace: a test that arms a point must know which it is.
func TestEachNameStandsInOnePlace(t *testing.T) {
	points, err := Points(top)
	if err != nil {
		t.Fatal(err)
	}
	if len(points) == 0 {
		t.Fatal("no failpoint found")
	}
	for _, d := range duplicates(points) {
		t.Error(d)
	}
}

// form is PACKAGE.OBJECT.VERB.
var form = regexp.MustCompile(`^[a-z]+\.[a-z*]+(\.[a-z*]+)?$`)

func duplicates(points []Point) (words []string) {
	seen := map[string]token.Position{}
	for _, p := range points {
		if first, twice := seen[p.Name]; twice {
			words = append(words, p.At.String()+": the failpoint "+p.Name+" stands at "+first.String()+" already")
		}
		if !form.MatchString(p.Name) {
			words = append(words, p.At.String()+": the failpoint "+p.Name+" is not named PACKAGE.OBJECT.VERB")
		}
		seen[p.Name] = p.At
	}
	return words
}

func TestDuplicatesAreSeen(t *testing.T) {
	points := []Point{{Name: "host.file.write"}, {Name: "host.file.rename"}, {Name: "host.file.write"}, {Name: "Host file"}}
	if got := duplicates(points); len(got) != 2 {
		t.Errorf("got %q, want two complaints", got)
	}
}
