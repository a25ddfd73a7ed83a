package config

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// functions are all that expressions may call, reading files through d and
// spending b.
func functions(d *disk, b *budget) map[string]function.Function {
	out := maps.Clone(pureFunctions)
	for name := range refused {
		out[name] = refusedFunc // reported before evaluation; here so that HCL does not report it again
	}
	out["abspath"] = textFunc([]string{"path"}, func(a []string) (string, error) {
		_, full := d.clean(a[0])
		return filepath.Clean(full), nil
	})
	out["file"] = d.function(func(content []byte) (string, error) {
		if !utf8.Valid(content) {
			return "", errors.New("the file is not text in UTF-8; use filebase64")
		}
		return string(content), nil
	})
	out["filebase64"] = d.function(func(b []byte) (string, error) { return base64Text(b), nil })
	for name, f := range map[string]func([]byte) string{
		"filemd5":          func(b []byte) string { return hexText(md5Sum(b)) },
		"filesha1":         func(b []byte) string { return hexText(sha1Sum(b)) },
		"filesha256":       func(b []byte) string { return hexText(sha256Sum(b)) },
		"filesha512":       func(b []byte) string { return hexText(sha512Sum(b)) },
		"filebase64sha256": func(b []byte) string { return base64Text(sha256Sum(b)) },
		"filebase64sha512": func(b []byte) string { return base64Text(sha512Sum(b)) },
	} {
		out[name] = d.function(func(b []byte) (string, error) { return f(b), nil })
	}
	out["fileexists"] = function.New(&function.Spec{
		Params: []function.Parameter{d.fileParameter("path")},
		Type:   function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			if err := mustKnow(args...); err != nil {
				return cty.NilVal, err
			}
			found, err := d.exists(args[0].AsString())
			return cty.BoolVal(found), err
		},
	})
	out["fileset"] = function.New(&function.Spec{
		Params: []function.Parameter{d.fileParameter("path"), d.fileParameter("pattern")},
		Type:   function.StaticReturnType(cty.Set(cty.String)),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			if err := mustKnow(args...); err != nil {
				return cty.NilVal, err
			}
			found, err := d.glob(args[0].AsString(), args[1].AsString())
			if err != nil {
				return cty.NilVal, err
			}
			if len(found) == 0 {
				return cty.SetValEmpty(cty.String), nil
			}
			values := make([]cty.Value, len(found))
			for i, f := range found {
				values[i] = cty.StringVal(f)
			}
			return cty.SetVal(values), nil
		},
	})
	out = b.meter(out)
	inner := maps.Clone(out) // a template cannot read templates: that could go on for ever
	out["templatefile"] = d.template(inner, b)
	out[templateString] = templateOf(inner, b)
	return out
}

// fileParameter lets a function see an unknown path, to refuse it in words. In a
// check without values what it gives is unknown as well.
func (d *disk) fileParameter(name string) function.Parameter {
	return function.Parameter{Name: name, Type: cty.String, AllowUnknown: !d.valueless}
}

// mustKnow refuses file names that exist only after apply: all files are read
// when the configuration is loaded.
func mustKnow(args ...cty.Value) error {
	for _, a := range args {
		if !a.IsKnown() {
			return errors.New("the name of the file depends on something known only after apply; files are read when the configuration is loaded, so their names must be known by then")
		}
	}
	return nil
}

var refusedFunc = function.New(&function.Spec{
	VarParam: &function.Parameter{Name: "args", Type: cty.DynamicPseudoType, AllowNull: true, AllowUnknown: true, AllowDynamicType: true},
	Type:     function.StaticReturnType(cty.DynamicPseudoType),
	Impl: func([]cty.Value, cty.Type) (cty.Value, error) {
		return cty.NilVal, errors.New("a plan must be repeatable")
	},
})

// function is a function of one file's content.
func (d *disk) function(f func([]byte) (string, error)) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{d.fileParameter("path")},
		Type:   function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			if err := mustKnow(args...); err != nil {
				return cty.NilVal, err
			}
			content, err := d.read(args[0].AsString())
			if err != nil {
				return cty.NilVal, err
			}
			out, err := f(content)
			return cty.StringVal(out), err
		},
	})
}

// template is templatefile: a file as an HCL template over the given values.
func (d *disk) template(inner map[string]function.Function, b *budget) function.Function {
	return templateFunction(d.fileParameter("path"), inner, b, func(path string) (text, name string, err error) {
		key, _ := d.clean(path)
		content, err := d.read(path)
		if err == nil && !utf8.Valid(content) {
			err = fmt.Errorf("template %s is not text in UTF-8", key)
		}
		return string(content), key, err
	})
}

// templateOf is templatestring: a text as an HCL template over the given values.
func templateOf(inner map[string]function.Function, b *budget) function.Function {
	return templateFunction(function.Parameter{Name: "template", Type: cty.String}, inner, b, func(text string) (string, string, error) {
		return text, "template", nil
	})
}

// templateFunction renders the template that source gives for its first argument. A
// template is parsed once.
func templateFunction(first function.Parameter, inner map[string]function.Function, b *budget, source func(string) (text, name string, err error)) function.Function {
	parsed := map[string]hclsyntax.Expression{}
	parse := func(given string) (hclsyntax.Expression, error) {
		if expr, done := parsed[given]; done {
			return expr, nil
		}
		text, name, err := source(given)
		if err != nil {
			return nil, err
		}
		if _, deep := tooDeep([]byte(text)); deep {
			return nil, fmt.Errorf("%s nests deeper than this program reads", name)
		}
		expr, diags := hclsyntax.ParseTemplate([]byte(text), name, hcl.InitialPos)
		if diags.HasErrors() {
			return nil, diags
		}
		expr = bound(expr)
		parsed[given] = expr
		return expr, nil
	}
	return function.New(&function.Spec{
		Params: []function.Parameter{first, {Name: "vars", Type: cty.DynamicPseudoType, AllowUnknown: true}},
		// A template of one ${…} alone has that value's type, so it is not fixed.
		Type: function.StaticReturnType(cty.DynamicPseudoType),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			if err := mustKnow(args[0]); err != nil {
				return cty.NilVal, err
			}
			expr, err := parse(args[0].AsString())
			if err != nil {
				return cty.NilVal, err
			}
			return render(expr, args[1], inner, b)
		},
	})
}

// render evaluates a template over the attributes of vars.
func render(expr hclsyntax.Expression, vars cty.Value, inner map[string]function.Function, b *budget) (cty.Value, error) {
	if ty := vars.Type(); !ty.IsObjectType() && !ty.IsMapType() {
		return cty.NilVal, function.NewArgErrorf(1, "an object with the template's variables is needed")
	}
	if !vars.IsKnown() {
		return cty.DynamicVal, nil
	}
	scope := &hcl.EvalContext{Variables: map[string]cty.Value{}, Functions: inner}
	for it := vars.ElementIterator(); it.Next(); {
		key, v := it.Element()
		scope.Variables[key.AsString()] = v
	}
	for _, t := range expr.Variables() {
		if _, given := scope.Variables[t.RootName()]; !given {
			rng := t.SourceRange()
			return cty.NilVal, function.NewArgErrorf(1, "%s line %d uses %s, which is not among the given values%s",
				rng.Filename, rng.Start.Line, t.RootName(), didYouMean(t.RootName(), slices.Collect(maps.Keys(scope.Variables))))
		}
	}
	scope.Variables[budgetName] = b.value()
	out, diags := expr.Value(scope)
	if diags.HasErrors() {
		return cty.NilVal, diags
	}
	return out, nil
}
