package config

import (
	"bytes"
	"compress/gzip"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	yaml "github.com/zclconf/go-cty-yaml"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"
)

var (
	yamlEncodeFunc = yaml.YAMLEncodeFunc
	yamlDecodeFunc = yaml.YAMLDecodeFunc

	urlDecodeFunc = textFunc([]string{"str"}, func(a []string) (string, error) {
		out, err := url.QueryUnescape(a[0])
		if err == nil && !utf8.ValidString(out) {
			err = errors.New("the decoded bytes are not text in UTF-8")
		}
		if err != nil {
			return "", function.NewArgError(0, err)
		}
		return out, nil
	})

	// base64gzip gives the same bytes for the same text: the header has no time.
	base64GzipFunc = textFunc([]string{"str"}, func(a []string) (string, error) {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		if _, err := w.Write([]byte(a[0])); err != nil {
			return "", err
		}
		if err := w.Close(); err != nil {
			return "", err
		}
		return base64Text(out.Bytes()), nil
	})

	textEncodeBase64Func = textFunc([]string{"str", "encoding"}, func(a []string) (string, error) {
		e, err := encodingOf(a[1])
		if err != nil {
			return "", err
		}
		out, err := e.NewEncoder().Bytes([]byte(a[0]))
		if err != nil {
			return "", function.NewArgErrorf(0, "the text has a character that %s does not have", a[1])
		}
		return base64Text(out), nil
	})

	textDecodeBase64Func = textFunc([]string{"str", "encoding"}, func(a []string) (string, error) {
		e, err := encodingOf(a[1])
		if err != nil {
			return "", err
		}
		raw, err := base64.StdEncoding.DecodeString(a[0])
		if err != nil {
			return "", function.NewArgErrorf(0, "not base64: %w", err)
		}
		out, err := e.NewDecoder().Bytes(raw)
		if err != nil || bytes.ContainsRune(out, utf8.RuneError) {
			return "", function.NewArgErrorf(0, "the decoded bytes are no text in %s", a[1])
		}
		return string(out), nil
	})

	// uuidv5 is RFC 9562's: the same for the same namespace and name.
	uuidV5Func = textFunc([]string{"namespace", "name"}, func(a []string) (string, error) {
		space, err := uuidNamespace(a[0])
		if err != nil {
			return "", err
		}
		sum := sha1.Sum(append(space, a[1]...))
		id := sum[:16]
		id[6] = id[6]&0x0f | 0x50
		id[8] = id[8]&0x3f | 0x80
		return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]), nil
	})

	rsaDecryptFunc = textFunc([]string{"ciphertext", "privatekey"}, func(a []string) (string, error) {
		raw, err := base64.StdEncoding.DecodeString(a[0])
		if err != nil {
			return "", function.NewArgErrorf(0, "not base64")
		}
		key, err := rsaKey(a[1])
		if err != nil {
			return "", function.NewArgError(1, err)
		}
		out, err := rsa.DecryptPKCS1v15(nil, key, raw)
		if err != nil {
			return "", function.NewArgErrorf(0, "it cannot be decrypted with this key")
		}
		if !utf8.Valid(out) {
			return "", function.NewArgErrorf(0, "the decrypted bytes are not text in UTF-8")
		}
		return string(out), nil
	})

	// type is for the console: the type of a value, as variables write it.
	typeFunc = function.New(&function.Spec{
		Params: []function.Parameter{{Name: "value", Type: cty.DynamicPseudoType, AllowUnknown: true, AllowNull: true, AllowDynamicType: true, AllowMarked: true}},
		Type:   function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.StringVal(typeexpr.TypeString(args[0].Type())), nil
		},
	})
)

// coalesce passes over empty texts as well as nulls.
var coalesceFunc = function.New(&function.Spec{
	VarParam: &function.Parameter{Name: "vals", Type: cty.DynamicPseudoType, AllowUnknown: true, AllowDynamicType: true, AllowNull: true},
	Type: func(args []cty.Value) (cty.Type, error) {
		types := make([]cty.Type, len(args))
		for i, a := range args {
			types[i] = a.Type()
		}
		ty, _ := convert.UnifyUnsafe(types)
		if ty == cty.NilType {
			return ty, errors.New("all arguments must be of one type")
		}
		return ty, nil
	},
	Impl: func(args []cty.Value, want cty.Type) (cty.Value, error) {
		for _, a := range args {
			a, err := convert.Convert(a, want)
			if err != nil {
				return cty.NilVal, err
			}
			switch {
			case !a.IsKnown():
				return cty.UnknownVal(want), nil
			case a.IsNull(), a.Type() == cty.String && a.AsString() == "":
				continue
			}
			return a, nil
		}
		return cty.NilVal, errors.New("all arguments are null or empty texts")
	},
})

// uuidNamespace is the 16 bytes of a namespace: one of the RFC's names, or a UUID.
func uuidNamespace(name string) ([]byte, error) {
	switch name {
	case "dns":
		name = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	case "url":
		name = "6ba7b811-9dad-11d1-80b4-00c04fd430c8"
	case "oid":
		name = "6ba7b812-9dad-11d1-80b4-00c04fd430c8"
	case "x500":
		name = "6ba7b814-9dad-11d1-80b4-00c04fd430c8"
	}
	parts := strings.Split(name, "-")
	out, err := hex.DecodeString(strings.Join(parts, ""))
	if err != nil || len(out) != 16 || len(parts) != 5 || len(name) != 36 {
		return nil, function.NewArgErrorf(0, "the namespace is dns, url, oid, x500 or a UUID such as 6ba7b810-9dad-11d1-80b4-00c04fd430c8")
	}
	return out, nil
}

// rsaKey reads an RSA private key in PEM.
func rsaKey(text string) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("it is not a key in PEM")
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if key, ok := parsed.(*rsa.PrivateKey); err == nil && ok {
		return key, nil
	}
	return nil, errors.New("it is not an RSA private key that can be read: use one in PKCS #1 or PKCS #8 without a passphrase")
}

// encodings are those that textencodebase64 and its like know, by IANA name.
var encodings = func() map[string]encoding.Encoding {
	out := map[string]encoding.Encoding{
		"utf-8":    unicode.UTF8,
		"utf-16":   unicode.UTF16(unicode.BigEndian, unicode.UseBOM),
		"utf-16be": unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM),
		"utf-16le": unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM),
	}
	for name, e := range map[string]*charmap.Charmap{
		"ibm437": charmap.CodePage437, "ibm850": charmap.CodePage850, "koi8-r": charmap.KOI8R, "koi8-u": charmap.KOI8U, "macintosh": charmap.Macintosh,
		"iso-8859-1": charmap.ISO8859_1, "iso-8859-2": charmap.ISO8859_2, "iso-8859-5": charmap.ISO8859_5, "iso-8859-7": charmap.ISO8859_7,
		"iso-8859-9": charmap.ISO8859_9, "iso-8859-15": charmap.ISO8859_15,
		"windows-1250": charmap.Windows1250, "windows-1251": charmap.Windows1251, "windows-1252": charmap.Windows1252, "windows-1253": charmap.Windows1253,
		"windows-1254": charmap.Windows1254, "windows-1255": charmap.Windows1255, "windows-1256": charmap.Windows1256, "windows-1257": charmap.Windows1257,
	} {
		out[name] = e
	}
	return out
}()

func encodingOf(name string) (encoding.Encoding, error) {
	if e := encodings[strings.ToLower(name)]; e != nil {
		return e, nil
	}
	return nil, function.NewArgErrorf(1, "%q is not known here; use the IANA name of a Unicode, Latin, Windows or KOI8 encoding, such as UTF-16LE or ISO-8859-15%s",
		name, didYouMean(strings.ToLower(name), slices.Collect(maps.Keys(encodings))))
}
