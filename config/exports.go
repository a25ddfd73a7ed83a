package config

import (
	"maps"
	"slices"

	"github.com/zclconf/go-cty/cty"
)

// portType is one element of sandbox.NAME.ports.
var portType = cty.Object(map[string]cty.Type{
	"address": cty.String, "container": cty.Number, "host": cty.Number, "protocol": cty.String,
})

// exportType is the type of one instance's value in references.
func (ev *evaluation) exportType(n *node) cty.Type {
	attrs := map[string]cty.Type{}
	for _, name := range resourceKinds[n.kind] {
		attrs[name] = cty.String
	}
	if n.kind == "sandbox" {
		attrs["ports"] = portsType(n.portNames())
		if n.makes("port") {
			attrs["ports"] = cty.Map(portType)
		}
	}
	return cty.Object(attrs)
}

func portsType(names []string) cty.Type {
	ports := map[string]cty.Type{}
	for _, name := range names {
		ports[name] = portType
	}
	return cty.Object(ports)
}

// What will be there after apply, and not be null.
var (
	laterText   = cty.UnknownVal(cty.String).RefineNotNull()
	laterNumber = cty.UnknownVal(cty.Number).RefineNotNull()
)

// textOrSoon is s, or unknown when it is empty.
func textOrSoon(s string) cty.Value {
	if s == "" {
		return laterText
	}
	return cty.StringVal(s)
}

// sandboxExports is what others read of a sandbox: what its block already says,
// else what is known of the one that exists.
func (d *decoder) sandboxExports(spec *Sandbox, attached bool) cty.Value {
	made := d.ev.exports[d.in.address]
	address := textOrSoon(made.Address)
	if !attached {
		address = cty.NullVal(cty.String)
	}
	return cty.ObjectVal(map[string]cty.Value{
		"id":          cty.StringVal(d.in.address),
		"address":     address,
		"instance_id": textOrSoon(made.InstanceID),
		"ports":       d.portExports(spec, made),
	})
}

// portExports is the ports attribute. Instances that are not made yet and have
// the same port blocks share one value.
func (d *decoder) portExports(spec *Sandbox, made Export) cty.Value {
	same := len(made.Ports) == 0 && d.phase == own && !d.n.portsDiffer()
	if same && d.n.ports != cty.NilVal {
		return d.n.ports
	}
	ports := map[string]cty.Value{}
	names := d.n.portNames()
	if d.n.makes("port") { // which ones may differ between instances
		names = slices.Sorted(maps.Keys(spec.Ports))
	}
	for _, name := range names {
		p, was := spec.Ports[name], made.Ports[name]
		host := p.Host
		if host == 0 && !d.isUnknown(Step("port", name)+".host") {
			host = was.Host
		}
		ports[name] = cty.ObjectVal(map[string]cty.Value{
			"address":   textOrSoon(p.Address),
			"protocol":  textOrSoon(p.Protocol),
			"container": numberOrSoon(p.Container),
			"host":      numberOrSoon(host),
		})
	}
	v := cty.ObjectVal(ports)
	switch {
	case d.n.makes("port") && len(ports) == 0:
		v = cty.MapValEmpty(portType)
	case d.n.makes("port"):
		v = cty.MapVal(ports)
	}
	if same {
		d.n.ports = v
	}
	return v
}

// portsDiffer reports whether a port block reads each or count.
func (n *declaration) portsDiffer() bool {
	for _, b := range n.block.Body.Blocks {
		if b.Type == "port" && n.differs(b) {
			return true
		}
	}
	return false
}

func numberOrSoon(n int) cty.Value {
	if n == 0 {
		return laterNumber
	}
	return cty.NumberIntVal(int64(n))
}
