package config

import (
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

var probes = []string{"command", "http", "tcp"}

// health decodes a health block over what lower layers say. A probe takes the
// place of a lower layer's, whatever kind that is.
func (d *decoder) health(l layer, b *hclsyntax.Block, spec *Sandbox) {
	h := Health{Interval: Duration(10 * time.Second), Timeout: Duration(5 * time.Second), Retries: 3}
	if spec.Health != nil {
		h = *spec.Health // instances of a block share what is equal for all
	}
	spec.Health = &h
	body := b.Body
	if d.phase != shared || !l.n.differs(b) { // else which probe it is shows when the rest is decoded
		d.oneProbe(l, body, &h)
	}
	// wrong reports whether a probe that is written was refused.
	wrong := func(name string, p presence) bool {
		attr := body.Attributes[name]
		return p == absent && attr != nil && !d.skips(l, attr) && d.isWritten(l, body, name)
	}
	p := setTexts(d, l, body, "command", "health.command", &h.Command)
	bad := wrong("command", p)
	if p == present {
		bad = !d.checkCommand(body.Attributes["command"], "health.command", h.Command)
	}
	bad = wrong("http", set(d, l, body, "http", "health.http", asProbeURL, &h.HTTP)) || bad
	bad = wrong("tcp", set(d, l, body, "tcp", "health.tcp", asContainerPort, &h.TCP)) || bad
	d.badProbe = d.badProbe || bad
	set(d, l, body, "interval", "health.interval", asProbeTime, &h.Interval)
	set(d, l, body, "timeout", "health.timeout", asProbeTime, &h.Timeout)
	set(d, l, body, "retries", "health.retries", asInt(1, 10_000), &h.Retries)
	set(d, l, body, "start_period", "health.start_period", asNotNegative, &h.StartPeriod)
}

// oneProbe drops a lower layer's probe where this block has one, and reports a
// second one of the block itself.
func (d *decoder) oneProbe(l layer, body *hclsyntax.Body, h *Health) {
	var written []string
	for _, name := range probes {
		if d.isWritten(l, body, name) {
			written = append(written, name)
		}
	}
	if len(written) == 0 {
		return
	}
	if len(written) > 1 {
		d.ev.fail(d.in.address, body.Attributes[written[1]].NameRange.Ptr(), "Two probes in one health block",
			"A sandbox has one probe: %s and %s exclude each other. Drop one of them; a command can look at several things.", written[0], written[1])
		d.badProbe = true
	}
	for _, name := range probes {
		if slices.Contains(written, name) {
			continue
		}
		switch name {
		case "command":
			h.Command = nil
		case "http":
			h.HTTP = ""
		case "tcp":
			h.TCP = 0
		}
		path := "health." + name
		d.unknown = slices.DeleteFunc(d.unknown, func(p string) bool { return within(p, path) })
		d.sensitive = slices.DeleteFunc(d.sensitive, func(p string) bool { return within(p, path) })
		d.places = slices.DeleteFunc(d.places, func(p place) bool { return p.path == path })
	}
}

// checkCommand reports a command that cannot be run.
func (d *decoder) checkCommand(attr *hclsyntax.Attribute, path string, command []string) bool {
	if len(command) == 0 || command[0] == "" && !d.isUnknown(path+"[0]") {
		d.wrong(attr, "command is required: name the program and its arguments, such as [\"sleep\", \"infinity\"]. A shell line is [\"sh\", \"-c\", \"…\"].")
		return false
	}
	for i, word := range command {
		err := noNUL(word)
		if err == nil && len(word) > maxString {
			err = tooLong("argument "+strconv.Itoa(i), len(word))
		}
		if err != nil {
			d.wrong(attr, "%s", sentence(err.Error()))
			return false
		}
	}
	return true
}

// hasProbe reports whether a sandbox's health block says what to probe.
func (d *decoder) hasProbe(h *Health) bool {
	if len(h.Command) > 0 || h.HTTP != "" || h.TCP != 0 || d.badProbe {
		return true
	}
	return slices.ContainsFunc(d.unknown, func(p string) bool {
		return p == "health.command" || p == "health.http" || p == "health.tcp"
	})
}

// contradictions reports arguments that, all layers merged, mean nothing
// together.
func (d *decoder) contradictions(spec *Sandbox) {
	restart := &spec.Restart
	lacks := func(path, other, why string) {
		if attr := d.argument(path); attr != nil && d.argument(other) == nil {
			d.ev.fail(d.in.address, attr.NameRange.Ptr(), "Argument without effect", "%s", why)
		}
	}
	lacks("lifetime.idle_action", "lifetime.idle_timeout",
		"idle_action says what happens to an idle sandbox, and without idle_timeout none is ever idle. Add idle_timeout, such as idle_timeout = \"5m\".")
	lacks("lifetime.renew_min_interval", "lifetime.renew_on_access",
		"renew_min_interval paces the renewals by renew_on_access, and that is not written. Add it, such as renew_on_access = \"1h\".")
	for _, name := range []string{"max_attempts", "window", "backoff_min", "backoff_max"} {
		lacks("restart."+name, "restart.mode", name+" paces restarts, and without mode there are none. Add mode = \"on-failure\" or mode = \"always\".")
	}
	if restart.BackoffMin > restart.BackoffMax && !d.isUnknown("restart.backoff_min") && !d.isUnknown("restart.backoff_max") {
		attr := d.argument("restart.backoff_min")
		if attr == nil {
			attr = d.argument("restart.backoff_max")
		}
		var rng *hcl.Range
		if attr != nil {
			rng = attr.Expr.Range().Ptr()
		}
		d.ev.fail(d.in.address, rng, "Contradicting rules", "backoff_min (%s) is longer than backoff_max (%s). The wait between restarts grows from the first to the second.",
			restart.BackoffMin, restart.BackoffMax)
	}
	if h := spec.Health; h != nil && !d.hasProbe(h) {
		rng := d.n.rng
		if b := blockOf(d.body, "health"); b != nil {
			rng = b.TypeRange
		}
		d.ev.fail(d.in.address, &rng, "Health block without a probe", "It does not say what to look at. Write one of command = [\"PROGRAM\", …], http = \"http://127.0.0.1:PORT/PATH\" and tcp = PORT.")
	}
	d.checkExec(spec)
}
