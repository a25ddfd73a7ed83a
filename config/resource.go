package config

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/zclconf/go-cty/cty"
)

// image decodes an image block and returns what others read of it.
func (d *decoder) image() cty.Value {
	var spec Image
	require(d, d.own(), d.body, "source", "source", asParsed(d.imageSource), &spec.Source)
	d.readLifecycle()
	d.ev.out.Images = append(d.ev.out.Images, finish(d, spec))
	return d.judged(cty.ObjectVal(map[string]cty.Value{
		"id":     cty.StringVal(d.in.address),
		"digest": textOrSoon(d.ev.exports[d.in.address].Digest),
	}))
}

func (d *decoder) imageSource(s string) (string, error) {
	scheme, rest, _ := strings.Cut(s, ":")
	switch {
	case s == "host":
		return s, nil
	case scheme == "dir" && rest == "":
		return "", errors.New("a directory must follow: dir:PATH")
	case scheme == "dir":
		if err := noNUL(rest); err != nil {
			return "", err
		}
		if !filepath.IsAbs(rest) {
			rest = filepath.Join(d.ev.src.Dir, rest)
		}
		return "dir:" + filepath.Clean(rest), nil
	case scheme == "oci" || scheme == "archive" || scheme == "docker":
		return "", fmt.Errorf("source %s: is not supported yet; use \"host\" for the host's own root, or dir:PATH for an unpacked root file system", scheme)
	}
	return "", fmt.Errorf("%q is not an image source; write \"host\" or \"dir:PATH\"%s", s, didYouMean(scheme, []string{"host", "dir"}))
}

// network decodes a network block and returns what others read of it.
func (d *decoder) network() cty.Value {
	var spec Network
	body := d.body
	p := set(d, d.own(), body, "cidr", "cidr", asCIDR, &spec.CIDR)
	set(d, d.own(), body, "internet", "internet", asBool, &spec.Internet)
	d.readLifecycle()
	d.ev.out.Networks = append(d.ev.out.Networks, finish(d, spec))

	cidr, gateway := spec.CIDR, ""
	switch {
	case p == present:
		prefix := netip.MustParsePrefix(cidr)
		gateway = gatewayOf(prefix).String()
		d.ev.ranges = append(d.ev.ranges, rangeUse{prefix, d.in.address, body.Attributes["cidr"].Expr.Range()})
	case p == absent:
		made := d.ev.exports[d.in.address]
		cidr, gateway = made.CIDR, made.Gateway
	}
	return d.judged(cty.ObjectVal(map[string]cty.Value{
		"id":      cty.StringVal(d.in.address),
		"cidr":    textOrSoon(cidr),
		"gateway": textOrSoon(gateway),
	}))
}

// volume decodes a volume block and returns what others read of it.
func (d *decoder) volume() cty.Value {
	d.readLifecycle()
	d.ev.out.Volumes = append(d.ev.out.Volumes, finish(d, Volume{}))
	return d.judged(cty.ObjectVal(map[string]cty.Value{"id": cty.StringVal(d.in.address)}))
}
