package config

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// conversion is toset, tostring and their kin.
func conversion(want cty.Type) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "v", Type: cty.DynamicPseudoType, AllowNull: true, AllowDynamicType: true}},
		Type: func(args []cty.Value) (cty.Type, error) {
			have := args[0].Type()
			if have.Equals(want) {
				return want, nil
			}
			if !args[0].IsKnown() && have == cty.DynamicPseudoType {
				return cty.DynamicPseudoType, nil
			}
			out, err := convert.Convert(args[0], want)
			if err != nil {
				return cty.NilType, function.NewArgErrorf(0, "cannot convert %s to %s: %w", have.FriendlyName(), want.FriendlyName(), err)
			}
			return out.Type(), nil
		},
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			out, err := convert.Convert(args[0], want)
			if err != nil {
				return cty.NilVal, function.NewArgErrorf(0, "cannot convert %s to %s: %w", args[0].Type().FriendlyName(), want.FriendlyName(), err)
			}
			return out, nil
		},
	})
}

// textFunc is a function of strings to a string.
func textFunc(params []string, f func(args []string) (string, error)) function.Function {
	spec := &function.Spec{Type: function.StaticReturnType(cty.String)}
	for _, name := range params {
		spec.Params = append(spec.Params, function.Parameter{Name: name, Type: cty.String})
	}
	spec.Impl = func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		out, err := f(texts(args))
		return cty.StringVal(out), err
	}
	return function.New(spec)
}

// testFunc is a function of two strings to a bool.
func testFunc(second string, f func(a, b string) bool) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "str", Type: cty.String}, {Name: second, Type: cty.String}},
		Type:   function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.BoolVal(f(args[0].AsString(), args[1].AsString())), nil
		},
	})
}

func texts(args []cty.Value) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = a.AsString()
	}
	return out
}

var (
	endsWithFunc    = testFunc("suffix", strings.HasSuffix)
	startsWithFunc  = testFunc("prefix", strings.HasPrefix)
	strContainsFunc = testFunc("substr", strings.Contains)

	// replace takes a regular expression when the second argument is /…/.
	replaceFunc = textFunc([]string{"str", "substr", "replace"}, func(a []string) (string, error) {
		if len(a[1]) > 1 && strings.HasPrefix(a[1], "/") && strings.HasSuffix(a[1], "/") {
			re, err := regexp.Compile(a[1][1 : len(a[1])-1])
			if err != nil {
				return "", function.NewArgErrorf(1, "not a regular expression: %w", err)
			}
			return re.ReplaceAllString(a[0], a[2]), nil
		}
		return strings.ReplaceAll(a[0], a[1], a[2]), nil
	})

	urlEncodeFunc = textFunc([]string{"str"}, func(a []string) (string, error) { return url.QueryEscape(a[0]), nil })
	baseNameFunc  = textFunc([]string{"path"}, func(a []string) (string, error) { return filepath.Base(a[0]), nil })
	dirNameFunc   = textFunc([]string{"path"}, func(a []string) (string, error) { return filepath.Dir(a[0]), nil })

	base64EncodeFunc = textFunc([]string{"str"}, func(a []string) (string, error) { return base64Text([]byte(a[0])), nil })
	base64DecodeFunc = textFunc([]string{"str"}, func(a []string) (string, error) {
		out, err := base64.StdEncoding.DecodeString(a[0])
		if err != nil {
			return "", function.NewArgErrorf(0, "not base64: %w", err)
		}
		if !utf8.Valid(out) {
			return "", function.NewArgErrorf(0, "the decoded bytes are not text in UTF-8")
		}
		return string(out), nil
	})

	// timeadd also takes d and w, as all durations of the language do.
	timeAddFunc = textFunc([]string{"timestamp", "duration"}, func(a []string) (string, error) {
		at, err := time.Parse(time.RFC3339Nano, a[0])
		if err != nil {
			return "", function.NewArgErrorf(0, "%q is not an instant in RFC 3339, such as 2026-12-01T00:00:00Z", a[0])
		}
		by, err := ParseDuration(a[1])
		if err != nil {
			return "", function.NewArgError(1, err)
		}
		return at.Add(time.Duration(by)).Format(time.RFC3339Nano), nil
	})
)

// timecmp is -1, 0 or 1, as the first instant is before, at or after the second.
var timeCompareFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "a", Type: cty.String}, {Name: "b", Type: cty.String}},
	Type:   function.StaticReturnType(cty.Number),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		var at [2]time.Time
		for i, a := range args {
			var err error
			if at[i], err = time.Parse(time.RFC3339Nano, a.AsString()); err != nil {
				return cty.NilVal, function.NewArgErrorf(i, "%q is not an instant in RFC 3339, such as 2026-12-01T00:00:00Z", a.AsString())
			}
		}
		return cty.NumberIntVal(int64(at[0].Compare(at[1]))), nil
	},
})

func md5Sum(b []byte) []byte    { s := md5.Sum(b); return s[:] }
func sha1Sum(b []byte) []byte   { s := sha1.Sum(b); return s[:] }
func sha256Sum(b []byte) []byte { s := sha256.Sum256(b); return s[:] }
func sha512Sum(b []byte) []byte { s := sha512.Sum512(b); return s[:] }

func hexText(b []byte) string    { return hex.EncodeToString(b) }
func base64Text(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func hashed(sum func([]byte) []byte, write func([]byte) string) function.Function {
	return textFunc([]string{"str"}, func(a []string) (string, error) { return write(sum([]byte(a[0]))), nil })
}

// everyBool folds a list of bools; an unknown element leaves the result
// unknown unless another decides it.
func everyBool(decides bool) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "list", Type: cty.List(cty.Bool)}},
		Type:   function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			unknown := false
			for it := args[0].ElementIterator(); it.Next(); {
				_, v := it.Element()
				switch {
				case !v.IsKnown():
					unknown = true
				case v.IsNull():
					if !decides {
						return cty.False, nil
					}
				case v.True() == decides:
					return cty.BoolVal(decides), nil
				}
			}
			if unknown {
				return cty.UnknownVal(cty.Bool), nil
			}
			return cty.BoolVal(!decides), nil
		},
	})
}

var (
	allTrueFunc = everyBool(false)
	anyTrueFunc = everyBool(true)
)

var sumFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "list", Type: cty.List(cty.Number)}},
	Type:   function.StaticReturnType(cty.Number),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		total := new(big.Float)
		for it := args[0].ElementIterator(); it.Next(); {
			_, v := it.Element()
			if !v.IsKnown() {
				return cty.UnknownVal(cty.Number), nil
			}
			if v.IsNull() {
				return cty.NilVal, function.NewArgErrorf(0, "the list has a null element")
			}
			total = new(big.Float).SetPrec(512).Add(total, v.AsBigFloat())
		}
		return cty.NumberVal(total), nil
	},
})

// length also counts the characters of a string.
var lengthFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "value", Type: cty.DynamicPseudoType, AllowDynamicType: true, AllowUnknown: true}},
	Type: func(args []cty.Value) (cty.Type, error) {
		ty := args[0].Type()
		if ty == cty.String || ty == cty.DynamicPseudoType || ty.IsCollectionType() || ty.IsTupleType() || ty.IsObjectType() {
			return cty.Number, nil
		}
		return cty.NilType, function.NewArgErrorf(0, "a string, list, set, map, tuple or object is needed")
	},
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		v := args[0]
		switch ty := v.Type(); {
		case ty == cty.DynamicPseudoType:
			return cty.UnknownVal(cty.Number), nil
		case ty == cty.String:
			return stdlib.Strlen(v)
		case ty.IsObjectType():
			return cty.NumberIntVal(int64(len(ty.AttributeTypes()))), nil
		}
		return v.Length(), nil
	},
})

// lookup's default may be left out; a missing key is then an error.
var lookupFunc = function.New(&function.Spec{
	Params:   []function.Parameter{{Name: "map", Type: cty.DynamicPseudoType}, {Name: "key", Type: cty.String}},
	VarParam: &function.Parameter{Name: "default", Type: cty.DynamicPseudoType, AllowNull: true, AllowDynamicType: true, AllowUnknown: true},
	Type: func(args []cty.Value) (cty.Type, error) {
		ty := args[0].Type()
		switch {
		case len(args) > 3:
			return cty.NilType, fmt.Errorf("lookup takes a map, a key and at most one default")
		case ty.IsMapType():
			return ty.ElementType(), nil
		case ty.IsObjectType() && !args[1].IsKnown():
			return cty.DynamicPseudoType, nil
		case ty.IsObjectType():
			if key := args[1].AsString(); ty.HasAttribute(key) {
				return ty.AttributeType(key), nil
			}
			if len(args) == 3 {
				return args[2].Type(), nil
			}
			return cty.NilType, function.NewArgErrorf(1, "the object has no attribute %q", args[1].AsString())
		}
		return cty.NilType, function.NewArgErrorf(0, "a map or an object is needed")
	},
	Impl: func(args []cty.Value, want cty.Type) (cty.Value, error) {
		key := args[1].AsString()
		if args[0].Type().IsObjectType() && args[0].Type().HasAttribute(key) {
			return args[0].GetAttr(key), nil
		}
		if args[0].Type().IsMapType() && args[0].HasIndex(args[1]).True() {
			return args[0].Index(args[1]), nil
		}
		if len(args) == 3 {
			out, err := convert.Convert(args[2], want)
			if err != nil {
				return cty.NilVal, function.NewArgErrorf(2, "the default must be of the type of the map's elements: %w", err)
			}
			return out, nil
		}
		return cty.NilVal, function.NewArgErrorf(1, "the map has no key %q", key)
	},
})

// index is the place of a value in a list, as Terraform has it.
var indexFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "list", Type: cty.DynamicPseudoType}, {Name: "value", Type: cty.DynamicPseudoType, AllowNull: true}},
	Type: func(args []cty.Value) (cty.Type, error) {
		if ty := args[0].Type(); !ty.IsListType() && !ty.IsTupleType() {
			return cty.NilType, function.NewArgErrorf(0, "a list is needed")
		}
		return cty.Number, nil
	},
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		for it := args[0].ElementIterator(); it.Next(); {
			i, v := it.Element()
			same, err := stdlib.Equal(v, args[1])
			if err != nil {
				return cty.NilVal, err
			}
			if !same.IsKnown() {
				return cty.UnknownVal(cty.Number), nil
			}
			if same.True() {
				return i, nil
			}
		}
		return cty.NilVal, errors.New("the list does not contain the value")
	},
})

// one is the only element of a list or set, or null of an empty one.
var oneFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "list", Type: cty.DynamicPseudoType}},
	Type: func(args []cty.Value) (cty.Type, error) {
		ty := args[0].Type()
		switch {
		case ty.IsListType() || ty.IsSetType():
			return ty.ElementType(), nil
		case ty.IsTupleType() && len(ty.TupleElementTypes()) == 1:
			return ty.TupleElementType(0), nil
		case ty.IsTupleType() && len(ty.TupleElementTypes()) == 0:
			return cty.DynamicPseudoType, nil
		}
		return cty.NilType, function.NewArgErrorf(0, "a list or set with at most one element is needed")
	},
	Impl: func(args []cty.Value, want cty.Type) (cty.Value, error) {
		if !args[0].Length().IsKnown() {
			return cty.UnknownVal(want), nil
		}
		switch args[0].LengthInt() {
		case 0:
			return cty.NullVal(want), nil
		case 1:
			it := args[0].ElementIterator()
			it.Next()
			_, v := it.Element()
			return v, nil
		}
		return cty.NilVal, function.NewArgErrorf(0, "it has %d elements, at most one is allowed", args[0].LengthInt())
	},
})

// maxRange bounds range(), so that a slip cannot use up the memory.
const maxRange = 100_000

// range is [start, limit) in steps; one argument is the limit, the step is 1
// or -1 when not given.
var rangeFunc = function.New(&function.Spec{
	VarParam: &function.Parameter{Name: "params", Type: cty.Number},
	Type:     function.StaticReturnType(cty.List(cty.Number)),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		start, limit, step := cty.Zero, cty.Zero, cty.NilVal
		switch len(args) {
		case 1:
			limit = args[0]
		case 2:
			start, limit = args[0], args[1]
		case 3:
			start, limit, step = args[0], args[1], args[2]
		default:
			return cty.NilVal, fmt.Errorf("range takes LIMIT, or START and LIMIT, or START, LIMIT and STEP")
		}
		down := limit.LessThan(start).True()
		if step == cty.NilVal {
			step = cty.NumberIntVal(1)
			if down {
				step = cty.NumberIntVal(-1)
			}
		}
		if step.Equals(cty.Zero).True() || step.LessThan(cty.Zero).True() != down && !limit.Equals(start).True() {
			return cty.NilVal, fmt.Errorf("the step does not lead from the start to the limit")
		}
		out := []cty.Value{}
		for at := start; ; at = at.Add(step) {
			if down && at.LessThanOrEqualTo(limit).True() || !down && at.GreaterThanOrEqualTo(limit).True() {
				break
			}
			if len(out) == maxRange {
				return cty.NilVal, fmt.Errorf("the range has more than %d values", maxRange)
			}
			out = append(out, at)
		}
		if len(out) == 0 {
			return cty.ListValEmpty(cty.Number), nil
		}
		return cty.ListVal(out), nil
	},
})

// transpose swaps the keys and the values of a map of lists of strings.
var transposeFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "values", Type: cty.Map(cty.List(cty.String))}},
	Type:   function.StaticReturnType(cty.Map(cty.List(cty.String))),
	Impl: func(args []cty.Value, want cty.Type) (cty.Value, error) {
		if !args[0].IsWhollyKnown() {
			return cty.UnknownVal(want), nil
		}
		collected := map[string][]cty.Value{}
		for it := args[0].ElementIterator(); it.Next(); {
			key, list := it.Element()
			if list.IsNull() {
				return cty.NilVal, function.NewArgErrorf(0, "the list of %q is null", key.AsString())
			}
			for in := list.ElementIterator(); in.Next(); {
				_, v := in.Element()
				if v.IsNull() {
					return cty.NilVal, function.NewArgErrorf(0, "the list of %q has a null element", key.AsString())
				}
				collected[v.AsString()] = append(collected[v.AsString()], key)
			}
		}
		if len(collected) == 0 {
			return cty.MapValEmpty(cty.List(cty.String)), nil
		}
		out := map[string]cty.Value{}
		for key, list := range collected {
			out[key] = cty.ListVal(list)
		}
		return cty.MapVal(out), nil
	},
})

// matchkeys are the values whose key, at the same place, is among the wanted.
var matchKeysFunc = function.New(&function.Spec{
	Params: []function.Parameter{
		{Name: "values", Type: cty.List(cty.DynamicPseudoType)},
		{Name: "keys", Type: cty.List(cty.DynamicPseudoType)},
		{Name: "searchset", Type: cty.List(cty.DynamicPseudoType)},
	},
	Type: func(args []cty.Value) (cty.Type, error) { return args[0].Type(), nil },
	Impl: func(args []cty.Value, want cty.Type) (cty.Value, error) {
		if !args[0].IsWhollyKnown() || !args[1].IsWhollyKnown() || !args[2].IsWhollyKnown() {
			return cty.UnknownVal(want), nil
		}
		values, keys, wanted := args[0].AsValueSlice(), args[1].AsValueSlice(), args[2].AsValueSlice()
		if len(values) != len(keys) {
			return cty.NilVal, fmt.Errorf("there are %d values and %d keys", len(values), len(keys))
		}
		var out []cty.Value
		for i, key := range keys {
			for _, w := range wanted {
				if same, err := stdlib.Equal(key, w); err == nil && same.IsKnown() && same.True() {
					out = append(out, values[i])
					break
				}
			}
		}
		if len(out) == 0 {
			return cty.ListValEmpty(want.ElementType()), nil
		}
		return cty.ListVal(out), nil
	},
})
