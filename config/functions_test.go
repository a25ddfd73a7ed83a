package config

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// functionExamples makes a directory with the files that the page of functions uses.
func functionExamples(t *testing.T) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := rsa.EncryptPKCS1v15(rand.Reader, &key.PublicKey, []byte("attack at dawn"))
	if err != nil {
		t.Fatal(err)
	}
	return directory(t, map[string]string{
		"main.hcl":       "",
		"hello.txt":      "hello\n",
		"greeting.tftpl": "Hello, ${name}!",
		"key.pem":        string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
		"secret.b64":     base64.StdEncoding.EncodeToString(secret),
	})
}

// functionRow is a line of a table of docs/functions.md.
var functionRow = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (.+?) \\| `(.+?)` \\| `(.+?)` \\|$")

// The page of functions has each function once, and every example gives the result
// that stands beside it.
func TestFunctionsPage(t *testing.T) {
	c, diags := mustLoad(t, functionExamples(t), Inputs{}).Console(DefaultSettings(), nil)
	if len(diags) > 0 {
		t.Fatal(show(t, diags))
	}
	value := func(text string) cty.Value {
		v, diags := c.Evaluate(text)
		if len(diags) > 0 {
			t.Errorf("%s: %s", text, show(t, diags))
			return cty.NilVal
		}
		return v
	}
	described := map[string]bool{}
	for _, row := range functionRow.FindAllStringSubmatch(page(t, "functions.md"), -1) {
		name, example, result := row[1], row[3], row[4]
		if described[name] {
			t.Errorf("%s is there twice", name)
		}
		described[name] = true
		if !strings.Contains(example, name+"(") {
			t.Errorf("the example of %s is %s", name, example)
		}
		got, want := value(example), value(result)
		if got == cty.NilVal || want == cty.NilVal {
			continue
		}
		// A list is written as what a tuple looks like, a map as an object.
		if same, err := convert.Convert(want, got.Type()); err == nil {
			want = same
		}
		if !got.RawEquals(want) {
			t.Errorf("%s is %#v, and %s stands beside it", example, got, result)
		}
	}
	var have []string
	for name := range described {
		have = append(have, name)
	}
	var all []string
	for name := range functionNames {
		all = append(all, name)
	}
	slices.Sort(have)
	slices.Sort(all)
	if !slices.Equal(have, all) {
		t.Errorf("described %q\nthere are %q", have, all)
	}
}

// What the functions refuse, they refuse with words.
func TestFunctionErrors(t *testing.T) {
	c, _ := mustLoad(t, functionExamples(t), Inputs{}).Console(DefaultSettings(), nil)
	for text, want := range map[string]string{
		`textencodebase64("x", "UTF-7")`:                     "is not known here",
		`textencodebase64("€", "ISO-8859-1")`:                "character",
		`textdecodebase64("_", "UTF-8")`:                     "not base64",
		`textdecodebase64("/w==", "UTF-8")`:                  "no text in UTF-8",
		`urldecode("%zz")`:                                   "invalid URL escape",
		`urldecode("%ff")`:                                   "not text in UTF-8",
		`uuidv5("dnss", "x")`:                                "a UUID such as",
		`rsadecrypt("eA==", "x")`:                            "not a key in PEM",
		`rsadecrypt("eA==", file("key.pem"))`:                "cannot be decrypted",
		`rsadecrypt("?", "x")`:                               "not base64",
		`yamldecode("a: [")`:                                 "on line 1",
		`templatestring("$${nme}", { name = 1 })`:            `Did you mean "name"?`,
		`templatestring("$${templatestring(\"\", {})}", {})`: "templatestring",
		`sensitive()`:                                        "Not enough function arguments",
	} {
		if _, diags := c.Evaluate(text); !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(show(t, diags), "│", "")), " "), want) {
			t.Errorf("%s lacks %q: %s", text, want, show(t, diags))
		}
	}
	s := source(t, "output \"o\" { value = type(1) }")
	if _, diags := s.Evaluate(DefaultSettings(), nil); !strings.Contains(show(t, diags), "pinfold console") {
		t.Error(show(t, diags))
	}
	if v, diags := c.Evaluate(`type({ a = ["x"], b = tolist([1]) })`); len(diags) > 0 || !strings.Contains(v.AsString(), "list(number)") {
		t.Errorf("%#v %s", v, show(t, diags))
	}
}

// A YAML text that unfolds without end is refused before it takes the memory.
func TestYAMLBomb(t *testing.T) {
	bomb := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 10; i++ {
		alias := fmt.Sprintf("*a%d", i-1)
		bomb += fmt.Sprintf("a%d: &a%d [%s%s]\n", i, i, strings.Repeat(alias+", ", 9), alias)
	}
	s := source(t, "output \"o\" { value = length(yamldecode(<<EOT\n"+bomb+"EOT\n)) }")
	if _, diags := s.Evaluate(DefaultSettings(), nil); !strings.Contains(show(t, diags), "too much work") {
		t.Error(show(t, diags))
	}
	flow := "[&a0 [x, x, x, x, x, x, x, x]"
	for i := 1; i < 10; i++ {
		flow += fmt.Sprintf(", &a%d [%s]", i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 8), ", "))
	}
	s = source(t, "output \"o\" { value = length(yamldecode(\""+flow+"]\")) }")
	if _, diags := s.Evaluate(DefaultSettings(), nil); !strings.Contains(show(t, diags), "too much work") {
		t.Error(show(t, diags))
	}
	// Anchors as people use them are fine.
	common := "common: &common\n  a: 1\n  list:\n  - x\n  - y\nlist: &list\n- &item {k: v}\n- *item\n"
	for i := range 500 {
		common += fmt.Sprintf("s%d:\n  <<: *common\n  more: *list\n", i)
	}
	s = source(t, "output \"o\" { value = length(yamldecode(<<EOT\n"+common+"EOT\n)) }")
	if d, diags := s.Evaluate(DefaultSettings(), nil); diags.HasErrors() || string(d.Outputs[0].Value) != "502" {
		t.Error(show(t, diags))
	}
}

// What is counted of a YAML text is never less than what it unfolds to.
func TestYAMLNodes(t *testing.T) {
	for text, least := range map[string]int64{
		"a: &a [1, 2, 3]\nb: [*a, *a]\n":                  9,
		"a: &a\n- 1\n- 2\nb: &b\n- *a\n- *a\nc: [*b, *b]": 12,
		"&r\na: 1\nb: 2\n":                                2,
		"- &a\n  k: [1, 2]\n- &b [*a, *a]\n- [*b, *b]":    10,
		"a: {b: &b {c: &c [1, 2]}, d: [*c, *c]}":          6,
	} {
		if got := yamlNodes(text); got < least {
			t.Errorf("%q: %d, at least %d", text, got, least)
		}
	}
}
