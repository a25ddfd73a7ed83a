package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

const (
	environPrefix = "PINFOLD_VAR_"
	valuesFile    = "pinfold.pfvars"
	valuesSuffix  = ".auto.pfvars"
)

// Load reads the configuration in dir: every *.hcl file, those of the modules it
// calls, the variable values from all places, and every file that a function of the
// configuration reads.
// Later places win: environment, pinfold.pfvars, *.auto.pfvars in the order of
// their names, then -var and -var-file as given.
//
// What cannot be read or parsed is reported, all of it; the Source is then nil.
// What the files mean is Evaluate's to check.
func Load(dir string, in Inputs) (*Source, Diagnostics) {
	k := newSink()
	root, err := filepath.Abs(dir)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		k.fail("", nil, "Cannot read the configuration", "Directory %s cannot be opened: %s.", dir, reason(err))
		return nil, k.sorted()
	}
	names, err := fileNames(root)
	if err != nil {
		k.fail("", nil, "Cannot read the configuration", "Directory %s cannot be read: %s.", dir, reason(err))
		return nil, k.sorted()
	}
	s := &Source{Dir: root, Files: map[string][]byte{}, Variables: map[string]Value{}, Reads: map[string][]byte{}, Globs: map[string][]string{}}
	var values []string
	for _, name := range names {
		switch {
		case strings.HasSuffix(name, ".hcl"):
			src, err := readBounded(filepath.Join(root, name))
			if err != nil {
				k.fail("", nil, "Cannot read the configuration", "File %s cannot be read: %s.", filepath.Join(dir, name), reason(err))
				continue
			}
			s.Files[name] = src
		case name == valuesFile || strings.HasSuffix(name, valuesSuffix):
			values = append(values, name)
		}
	}
	if len(s.Files) == 0 && !k.failed() {
		k.fail("", nil, "No configuration", "There are no *.hcl files in %s; run pinfold init there for a starter, or point -chdir at the right directory.", dir)
		return nil, k.sorted()
	}
	s.parsed = parseFiles(k, s.Files)
	s.loadModules(k)
	s.loadValues(k, values, in)
	s.dropForeign()
	if k.failed() {
		return nil, k.sorted()
	}
	s.capture()
	return s, k.sorted()
}

// loadModules reads the directories of the modules that are called, and of those that
// they call. A source that is no local directory, or none that can be read, is left to
// Evaluate to refuse, with all else that is wrong.
func (s *Source) loadModules(k *sink) {
	read := map[string]bool{".": true}
	for next := s.parsed; len(next) > 0; {
		var found []parsedFile
		for _, f := range next {
			for _, b := range f.body.Blocks {
				attr := b.Body.Attributes["source"]
				if b.Type != "module" || attr == nil {
					continue
				}
				dir, why := localSource(f.dir(), attr)
				if why != "" || read[dir] {
					continue
				}
				read[dir] = true
				found = append(found, s.loadModule(k, dir)...)
			}
		}
		s.parsed = append(s.parsed, found...)
		next = found
	}
}

// loadModule reads the files of one module's directory.
func (s *Source) loadModule(k *sink, dir string) (out []parsedFile) {
	full := filepath.Join(s.Dir, filepath.FromSlash(dir))
	names, err := fileNames(full)
	if err != nil {
		s.lost(dir+"/", "it cannot be read: "+reason(err))
		return nil
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".hcl") {
			continue
		}
		src, err := readBounded(filepath.Join(full, name))
		if err != nil {
			k.fail("", nil, "Cannot read the configuration", "File %s cannot be read: %s.", path.Join(dir, name), reason(err))
			continue
		}
		s.Files[path.Join(dir, name)] = src
		if f, ok := parseFile(k, path.Join(dir, name), src); ok {
			out = append(out, f)
		}
	}
	return out
}

// lost keeps why something could not be read.
func (s *Source) lost(key, why string) {
	if s.unread == nil {
		s.unread = map[string]string{}
	}
	s.unread[key] = why
}

// fileNames are what is no directory in a directory, sorted; hidden ones and editors'
// backups are left out. What is no regular file is among them, for who reads it refuses
// it: a configuration with a part left out destroys what that declared.
func fileNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") || strings.HasPrefix(name, "#") {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.IsDir() {
			continue
		}
		out = append(out, name)
	}
	return out, nil
}

// dropForeign forgets values from the environment that no variable takes: they
// are other configurations', and must neither be stored nor change the digest.
func (s *Source) dropForeign() {
	declared := map[string]bool{}
	for _, f := range s.parsed {
		if f.dir() != "." {
			continue
		}
		for _, b := range f.body.Blocks {
			if b.Type == "variable" && len(b.Labels) == 1 {
				declared[b.Labels[0]] = true
			}
		}
	}
	for name, v := range s.Variables {
		if v.fromEnvironment() && !declared[name] {
			delete(s.Variables, name)
		}
	}
}

func (s *Source) loadValues(k *sink, files []string, in Inputs) {
	for _, pair := range in.Environ {
		if name, value, ok := strings.Cut(pair, "="); ok && strings.HasPrefix(name, environPrefix) {
			s.Variables[strings.TrimPrefix(name, environPrefix)] = Value{Text: value, Origin: name}
		}
	}
	// pinfold.pfvars first, whatever the others are called.
	slices.SortStableFunc(files, func(a, b string) int {
		switch {
		case a == valuesFile:
			return -1
		case b == valuesFile:
			return 1
		}
		return strings.Compare(a, b)
	})
	for _, name := range files {
		s.loadValuesFile(k, readBounded, filepath.Join(s.Dir, name), name, name)
	}
	order := in.Order
	if order == nil {
		for i := range in.VarFiles {
			order = append(order, "file:"+strconv.Itoa(i))
		}
		for i := range in.Vars {
			order = append(order, "var:"+strconv.Itoa(i))
		}
	}
	for _, entry := range order {
		kind, number, _ := strings.Cut(entry, ":")
		i, err := strconv.Atoi(number)
		switch {
		case err == nil && kind == "file" && i >= 0 && i < len(in.VarFiles):
			s.loadValuesFile(k, readGiven, in.VarFiles[i], in.VarFiles[i], "-var-file="+in.VarFiles[i])
		case err == nil && kind == "var" && i >= 0 && i < len(in.Vars):
			name, value, ok := strings.Cut(in.Vars[i], "=")
			if name = strings.TrimSpace(name); !ok || !hclsyntax.ValidIdentifier(name) {
				k.fail("", nil, "Invalid -var", "-var %s is not NAME=VALUE, such as -var 'region=eu'.", strconv.Quote(in.Vars[i]))
				continue
			}
			s.Variables[name] = Value{Text: value, Origin: "-var"}
		default:
			k.fail("", nil, "Invalid order of variables", "Entry %q of the order of -var and -var-file names nothing that was given.", entry)
		}
	}
}

// secretive reports whether a variable of the root module may be sensitive.
func (s *Source) secretive() bool {
	for _, f := range s.parsed {
		for _, b := range f.body.Blocks {
			if b.Type == "variable" && f.dir() == "." && b.Body.Attributes["sensitive"] != nil {
				return true
			}
		}
	}
	return false
}

func (s *Source) loadValuesFile(k *sink, read func(string) ([]byte, error), path, name, origin string) {
	src, err := read(path)
	if err != nil {
		k.fail("", nil, "Cannot read variable values", "File %s cannot be read: %s.", path, reason(err))
		return
	}
	parsed, diags := parseConfig(src, name)
	if !s.secretive() { // else a line that is not understood may hold what is to stay hidden
		k.source(name, src, nil)
	}
	k.addAll("", diags)
	if diags.HasErrors() {
		return
	}
	body := parsed.Body.(*hclsyntax.Body)
	for _, b := range body.Blocks {
		k.fail("", b.TypeRange.Ptr(), "Block in a file of values", "A file of variable values holds NAME = VALUE lines only. Blocks belong into *.hcl files.")
	}
	for _, attr := range body.Attributes {
		// The expression's own range leaves out parentheses around it.
		from := attr.EqualsRange.End
		rest := src[from.Byte:attr.SrcRange.End.Byte]
		trimmed := strings.TrimLeft(string(rest), " \t")
		s.Variables[attr.Name] = Value{
			Text: trimmed, Expr: true, Origin: origin,
			File: name, Line: from.Line, Column: from.Column + len(rest) - len(trimmed),
		}
	}
}

// capture evaluates once with the disk at hand, if any function in the files
// reads it, and keeps what is read. Errors, those of reading included, are left
// to Evaluate, which knows the place in the files.
func (s *Source) capture() {
	reads := false
	for _, f := range s.parsed {
		_ = hclsyntax.VisitAll(f.body, func(part hclsyntax.Node) hcl.Diagnostics {
			if call, ok := part.(*hclsyntax.FunctionCallExpr); ok && diskFunctions[call.Name] {
				reads = true
			}
			return nil
		})
	}
	if !reads {
		return
	}
	newEvaluation(s, DefaultSettings(), nil, &disk{source: s, live: true}).run()
}

// Digest is a SHA-256 in hex over everything the evaluation depends on: the
// files, what the functions read, and the variables' values. Where the
// directory lies and where a value came from do not count.
func (s *Source) Digest() string {
	type value struct {
		Text string
		Expr bool
	}
	values := make(map[string]value, len(s.Variables))
	for name, v := range s.Variables {
		values[name] = value{v.Text, v.Expr}
	}
	// JSON sorts the keys of maps, so the same content gives the same bytes.
	content, err := json.Marshal([]any{s.Files, values, nonNil(s.Reads), nonNil(s.Globs)})
	if err != nil {
		panic("config: plain maps do not marshal: " + err.Error())
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// nonNil makes an absent and an empty map the same.
func nonNil[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}

// reason is an error without the operation and path that the text around it names.
func reason(err error) string {
	var path *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "it does not exist"
	case errors.Is(err, fs.ErrPermission):
		return "permission denied"
	case errors.As(err, &path):
		return path.Err.Error()
	}
	return fmt.Sprint(err)
}
