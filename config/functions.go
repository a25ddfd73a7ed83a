package config

import (
	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// pureFunctions depend on their arguments only. The names and meanings are
// Terraform's.
var pureFunctions = map[string]function.Function{
	// numbers
	"abs":      stdlib.AbsoluteFunc,
	"ceil":     stdlib.CeilFunc,
	"floor":    stdlib.FloorFunc,
	"log":      stdlib.LogFunc,
	"max":      stdlib.MaxFunc,
	"min":      stdlib.MinFunc,
	"parseint": stdlib.ParseIntFunc,
	"pow":      stdlib.PowFunc,
	"signum":   stdlib.SignumFunc,
	"sum":      sumFunc,

	// text
	"chomp":       stdlib.ChompFunc,
	"endswith":    endsWithFunc,
	"format":      stdlib.FormatFunc,
	"formatlist":  stdlib.FormatListFunc,
	"indent":      stdlib.IndentFunc,
	"join":        stdlib.JoinFunc,
	"lower":       stdlib.LowerFunc,
	"regex":       stdlib.RegexFunc,
	"regexall":    stdlib.RegexAllFunc,
	"replace":     replaceFunc,
	"split":       stdlib.SplitFunc,
	"startswith":  startsWithFunc,
	"strcontains": strContainsFunc,
	"strrev":      stdlib.ReverseFunc,
	"substr":      stdlib.SubstrFunc,
	"title":       stdlib.TitleFunc,
	"trim":        stdlib.TrimFunc,
	"trimprefix":  stdlib.TrimPrefixFunc,
	"trimspace":   stdlib.TrimSpaceFunc,
	"trimsuffix":  stdlib.TrimSuffixFunc,
	"upper":       stdlib.UpperFunc,

	// collections
	"alltrue":         allTrueFunc,
	"anytrue":         anyTrueFunc,
	"chunklist":       stdlib.ChunklistFunc,
	"coalesce":        coalesceFunc,
	"coalescelist":    stdlib.CoalesceListFunc,
	"compact":         stdlib.CompactFunc,
	"concat":          stdlib.ConcatFunc,
	"contains":        stdlib.ContainsFunc,
	"distinct":        stdlib.DistinctFunc,
	"element":         stdlib.ElementFunc,
	"flatten":         stdlib.FlattenFunc,
	"index":           indexFunc,
	"keys":            stdlib.KeysFunc,
	"length":          lengthFunc,
	"lookup":          lookupFunc,
	"matchkeys":       matchKeysFunc,
	"merge":           stdlib.MergeFunc,
	"one":             oneFunc,
	"range":           rangeFunc,
	"reverse":         stdlib.ReverseListFunc,
	"setintersection": stdlib.SetIntersectionFunc,
	"setproduct":      stdlib.SetProductFunc,
	"setsubtract":     stdlib.SetSubtractFunc,
	"setunion":        stdlib.SetUnionFunc,
	"slice":           stdlib.SliceFunc,
	"sort":            stdlib.SortFunc,
	"transpose":       transposeFunc,
	"values":          stdlib.ValuesFunc,
	"zipmap":          stdlib.ZipmapFunc,

	// types
	"can":      tryfunc.CanFunc,
	"try":      tryfunc.TryFunc,
	"tobool":   conversion(cty.Bool),
	"tolist":   conversion(cty.List(cty.DynamicPseudoType)),
	"tomap":    conversion(cty.Map(cty.DynamicPseudoType)),
	"tonumber": conversion(cty.Number),
	"toset":    conversion(cty.Set(cty.DynamicPseudoType)),
	"tostring": conversion(cty.String),

	// secrets
	"issensitive":  issensitiveFunc,
	"nonsensitive": nonsensitiveFunc,
	"sensitive":    sensitiveFunc,

	// encodings and hashes
	"base64decode":     base64DecodeFunc,
	"base64encode":     base64EncodeFunc,
	"base64gzip":       base64GzipFunc,
	"base64sha256":     hashed(sha256Sum, base64Text),
	"base64sha512":     hashed(sha512Sum, base64Text),
	"csvdecode":        stdlib.CSVDecodeFunc,
	"jsondecode":       stdlib.JSONDecodeFunc,
	"jsonencode":       stdlib.JSONEncodeFunc,
	"md5":              hashed(md5Sum, hexText),
	"sha1":             hashed(sha1Sum, hexText),
	"sha256":           hashed(sha256Sum, hexText),
	"sha512":           hashed(sha512Sum, hexText),
	"textdecodebase64": textDecodeBase64Func,
	"textencodebase64": textEncodeBase64Func,
	"urldecode":        urlDecodeFunc,
	"urlencode":        urlEncodeFunc,
	"uuidv5":           uuidV5Func,
	"rsadecrypt":       rsaDecryptFunc,
	"yamldecode":       yamlDecodeFunc,
	"yamlencode":       yamlEncodeFunc,

	// dates
	"formatdate": stdlib.FormatDateFunc,
	"timeadd":    timeAddFunc,
	"timecmp":    timeCompareFunc,

	// addresses
	"cidrhost":    cidrHostFunc,
	"cidrnetmask": cidrNetmaskFunc,
	"cidrsubnet":  cidrSubnetFunc,
	"cidrsubnets": cidrSubnetsFunc,

	// paths, as text
	"basename": baseNameFunc,
	"dirname":  dirNameFunc,
}

// templateString is a function of texts only, but needs all others.
const templateString = "templatestring"

// diskFunctions read the disk, or depend on where the configuration lies.
var diskFunctions = map[string]bool{
	"abspath": true, "file": true, "filebase64": true, "fileexists": true, "fileset": true, "templatefile": true,
	"filebase64sha256": true, "filebase64sha512": true, "filemd5": true, "filesha1": true, "filesha256": true, "filesha512": true,
}

// functionNames are all functions an expression may call.
var functionNames = func() map[string]bool {
	out := map[string]bool{}
	for name := range pureFunctions {
		out[name] = true
	}
	for name := range diskFunctions {
		out[name] = true
	}
	out[templateString] = true
	return out
}()
