package config

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// schema says what a block may contain.
type schema struct {
	attrs  map[string]attrRule
	blocks map[string]blockRule
	open   bool // takes arguments of other names, too
}

type attrRule struct {
	required bool
	later    string // not supported yet: what to use instead, or "-" for nothing
	literal  bool   // read as syntax, not evaluated: types, names, references in depends_on
}

type blockRule struct {
	label  string // what the one label means; empty: no label
	many   bool
	later  string
	schema *schema
}

// no is the hint of what cannot be had yet and has no substitute.
const no = "-"

var lifecycleSchema = &schema{
	attrs: map[string]attrRule{
		"prevent_destroy":       {},
		"ignore_changes":        {literal: true},
		"create_before_destroy": {},
		"replace_triggered_by":  {literal: true},
	},
	blocks: map[string]blockRule{
		"precondition":  {many: true, schema: conditionSchema},
		"postcondition": {many: true, schema: conditionSchema},
	},
}

var lifetimeSchema = &schema{attrs: map[string]attrRule{
	"ttl":                {},
	"on_lost":            {},
	"start_timeout":      {},
	"idle_timeout":       {},
	"idle_action":        {},
	"resume_on_access":   {},
	"renew_on_access":    {},
	"renew_min_interval": {},
	"clock":              {},
}}

var resourcesSchema = &schema{attrs: map[string]attrRule{
	"cpu":    {},
	"memory": {},
	"pids":   {},
	"disk":   {later: no},
}}

var securitySchema = &schema{attrs: map[string]attrRule{
	"user_namespace":    {},
	"drop_capabilities": {},
	"read_only_root":    {},
	"add_capabilities":  {later: no},
	"privileged":        {later: no},
	"seccomp":           {later: "The default seccomp profile is always on."},
}}

var restartSchema = &schema{attrs: map[string]attrRule{
	"mode":         {},
	"max_attempts": {},
	"window":       {},
	"backoff_min":  {},
	"backoff_max":  {},
}}

var healthSchema = &schema{attrs: map[string]attrRule{
	"command":      {},
	"http":         {},
	"tcp":          {},
	"interval":     {},
	"timeout":      {},
	"retries":      {},
	"start_period": {},
}}

const laterRules = "Without internet = true on the network block, sandboxes cannot leave the host."

var sandboxSchema = &schema{
	attrs: withMeta(map[string]attrRule{
		"image":           {required: true},
		"command":         {required: true},
		"env":             {},
		"working_dir":     {},
		"user":            {},
		"hostname":        {},
		"labels":          {},
		"operating_mode":  {},
		"shutdown_time":   {},
		"shutdown_policy": {},
		"policies":        {},
		"stop_signal":     {},
		"stop_grace":      {},
	}),
	blocks: map[string]blockRule{
		"lifetime":  {schema: lifetimeSchema},
		"resources": {schema: resourcesSchema},
		"security":  {schema: securitySchema},
		"restart":   {schema: restartSchema},
		"lifecycle": {schema: lifecycleSchema},
		"network": {schema: &schema{
			attrs: map[string]attrRule{"name": {required: true}},
			blocks: map[string]blockRule{
				"egress":  {many: true, later: laterRules},
				"ingress": {many: true, later: laterRules},
			},
		}},
		"port": {label: "the port's name", many: true, schema: &schema{attrs: map[string]attrRule{
			"container": {required: true}, "host": {}, "address": {}, "protocol": {},
		}}},
		"volume": {label: "the claim's name", many: true, schema: &schema{attrs: map[string]attrRule{
			"path": {required: true}, "read_only": {}, "on_destroy": {},
			"size": {later: "The volume is a directory; it can grow until the disk is full."},
			"from": {later: "Use a volume block and a mount of it for data that outlives the sandbox."},
		}}},
		"mount": {many: true, schema: &schema{attrs: map[string]attrRule{
			"volume": {}, "host": {}, "tmpfs": {}, "size": {}, "path": {required: true}, "read_only": {},
		}}},
		"file": {label: "the path inside the sandbox", many: true, schema: &schema{attrs: map[string]attrRule{
			"content": {required: true}, "mode": {},
			"source": {later: "Use content = file(\"PATH\")."},
		}}},
		"health": {schema: healthSchema},
	},
}

var policySchema = &schema{
	attrs: map[string]attrRule{
		"shutdown_time":   {},
		"shutdown_policy": {},
		"stop_signal":     {},
		"stop_grace":      {},
	},
	blocks: map[string]blockRule{
		"lifetime":  {schema: lifetimeSchema},
		"resources": {schema: resourcesSchema},
		"security":  {schema: securitySchema},
		"restart":   {schema: restartSchema},
		"network":   {later: laterRules},
		"health":    {schema: healthSchema},
	},
}

var imageSchema = &schema{
	attrs: withMeta(map[string]attrRule{
		"source": {required: true},
		"pull":   {later: "Sources host and dir:PATH are never pulled."},
	}),
	blocks: map[string]blockRule{"lifecycle": {schema: lifecycleSchema}},
}

var networkSchema = &schema{
	attrs: withMeta(map[string]attrRule{
		"cidr":     {},
		"internet": {},
		"dns":      {later: "Sandboxes get their addresses through env = { PEER = sandbox.NAME.address }."},
	}),
	blocks: map[string]blockRule{
		"lifecycle": {schema: lifecycleSchema},
		"dns":       {later: "Sandboxes get their addresses through env = { PEER = sandbox.NAME.address }."},
		"egress":    {many: true, later: laterRules},
		"ingress":   {many: true, later: laterRules},
	},
}

var volumeSchema = &schema{
	attrs: withMeta(map[string]attrRule{
		"size": {later: "The volume is a directory; it can grow until the disk is full."},
	}),
	blocks: map[string]blockRule{"lifecycle": {schema: lifecycleSchema}},
}

var variableSchema = &schema{
	attrs: map[string]attrRule{
		"type":        {literal: true},
		"default":     {},
		"description": {},
		"nullable":    {},
		"sensitive":   {literal: true},
		"ephemeral":   {later: no},
	},
	blocks: map[string]blockRule{"validation": {many: true, schema: conditionSchema}},
}

var outputSchema = &schema{
	attrs: map[string]attrRule{
		"value":       {required: true},
		"description": {},
		"sensitive":   {literal: true},
		"depends_on":  {literal: true},
	},
	blocks: map[string]blockRule{"precondition": {many: true, schema: conditionSchema}},
}

var checkSchema = &schema{blocks: map[string]blockRule{
	"assert": {many: true, schema: conditionSchema},
	"data":   {label: "its type", many: true, later: "An assert can read whatever the configuration declares."},
}}

var movedSchema = &schema{attrs: map[string]attrRule{
	"from": {required: true, literal: true},
	"to":   {required: true, literal: true},
}}

var importSchema = &schema{attrs: map[string]attrRule{
	"to":       {required: true, literal: true},
	"id":       {required: true},
	"for_each": {},
}}

var removedSchema = &schema{
	attrs: map[string]attrRule{"from": {required: true, literal: true}},
	blocks: map[string]blockRule{
		"lifecycle": {schema: &schema{attrs: map[string]attrRule{"destroy": {required: true, literal: true}}}},
	},
}

// moduleSchema has the arguments of a module block that are no inputs of the module.
var moduleSchema = &schema{
	attrs: withMeta(map[string]attrRule{
		"source":    {required: true, literal: true},
		"version":   {later: "A module is a local directory, and has the version of the files there."},
		"providers": {later: "There are no providers; what a module needs it takes as variables."},
	}),
	open: true,
}

var rootSchema = &schema{blocks: map[string]blockRule{
	"sandbox":  {label: "the sandbox's name", many: true, schema: sandboxSchema},
	"image":    {label: "the image's name", many: true, schema: imageSchema},
	"network":  {label: "the network's name", many: true, schema: networkSchema},
	"volume":   {label: "the volume's name", many: true, schema: volumeSchema},
	"policy":   {label: "the policy's name", many: true, schema: policySchema},
	"variable": {label: "the variable's name", many: true, schema: variableSchema},
	"output":   {label: "the output's name", many: true, schema: outputSchema},
	"locals":   {many: true},
	"pinfold":  {many: true, schema: &schema{attrs: map[string]attrRule{"required_version": {}}}},
	"module":   {label: "the module's name", many: true, schema: moduleSchema},
	"moved":    {many: true, schema: movedSchema},
	"import":   {many: true, schema: importSchema},
	"removed":  {many: true, schema: removedSchema},
	"check":    {label: "the check's name", many: true, schema: checkSchema},
}}

// withMeta adds the arguments every resource has.
func withMeta(attrs map[string]attrRule) map[string]attrRule {
	attrs["for_each"] = attrRule{}
	attrs["count"] = attrRule{}
	attrs["depends_on"] = attrRule{literal: true}
	return attrs
}

// names are a schema's argument and block names, for ignore_changes.
func (s *schema) names() []string {
	out := slices.Collect(maps.Keys(s.attrs))
	for name := range s.blocks {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// elsewhere are names that compose files, Dockerfiles and unit files have for what is
// called otherwise here.
var elsewhere = map[string]string{
	"cmd": "command", "entrypoint": "command", "args": "command", "exec_start": "command", "environment": "env",
	"workdir": "working_dir", "working_directory": "working_dir", "volumes": "mount", "mounts": "mount", "ports": "port",
	"networks": "network", "healthcheck": "health", "restart_policy": "restart", "runtime_max": "lifetime", "mem_limit": "resources",
	"cpus": "resources", "limits": "resources", "cap_drop": "security", "stop_timeout": "stop_grace", "kill_timeout": "stop_grace",
}

// meant ends the sentence that s does not have a name: with the block inside it that
// has it, with what it is called here, or with the closest of its names.
func (s *schema) meant(name string) string {
	if s == rootSchema {
		return didYouMean(name, s.names())
	}
	for _, block := range slices.Sorted(maps.Keys(s.blocks)) {
		inner := s.blocks[block]
		if inner.schema == nil || inner.label != "" || inner.many {
			continue
		}
		if rule, there := inner.schema.attrs[name]; there && !rule.required {
			return fmt.Sprintf(". It belongs into the block %s: %s { %s = … }.", block, block, name)
		}
		if _, there := inner.schema.blocks[name]; there {
			return fmt.Sprintf(". It belongs into the block %s: %s { %s { … } }.", block, block, name)
		}
	}
	if here := elsewhere[name]; here != "" && slices.Contains(s.names(), here) {
		return fmt.Sprintf(". Did you mean %q?", here)
	}
	return didYouMean(name, s.names())
}

// check reports whatever in body the schema does not allow, to any depth.
func (k *sink) check(address string, body *hclsyntax.Body, s *schema, what string) {
	for name, attr := range body.Attributes {
		rule, known := s.attrs[name]
		_, isBlock := s.blocks[name]
		switch {
		case known && rule.later != "":
			k.later(address, attr.NameRange.Ptr(), name, rule.later)
		case known, s.open:
		case isBlock:
			k.fail(address, attr.NameRange.Ptr(), "Block written as an argument",
				"%q is a block inside %s. Write %s { … } without an equals sign.", name, what, name)
		default:
			k.fail(address, attr.NameRange.Ptr(), "Unknown argument",
				"%s has no argument %q%s", capital(what), name, ended(s.meant(name)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.attrs)) {
		if _, present := body.Attributes[name]; s.attrs[name].required && !present {
			k.fail(address, body.MissingItemRange().Ptr(), "Missing argument",
				"%s needs the argument %q.", capital(what), name)
		}
	}
	first := map[string]*hclsyntax.Block{}
	labels := map[[2]string]*hclsyntax.Block{}
	for _, b := range body.Blocks {
		rule, known := s.blocks[b.Type]
		if b.Type == dynamic && s != rootSchema && len(s.blocks) > 0 {
			k.checkDynamic(address, b, s, what)
			continue
		}
		if !known {
			k.unknownBlock(address, b, s, what)
			continue
		}
		if rule.later != "" {
			k.later(address, b.TypeRange.Ptr(), b.Type, rule.later)
			continue
		}
		if !k.checkLabels(address, b, rule) {
			continue
		}
		if k.repeats(address, b, rule, s, what, first, labels) {
			continue
		}
		if rule.schema != nil && s != rootSchema {
			k.check(address, b.Body, rule.schema, "block "+header(b))
		}
	}
}

// repeats reports a block that was there already and may be there only once. first
// and labels are those seen in the body so far.
func (k *sink) repeats(address string, b *hclsyntax.Block, rule blockRule, s *schema, what string, first map[string]*hclsyntax.Block, labels map[[2]string]*hclsyntax.Block) bool {
	if previous := first[b.Type]; previous != nil && !rule.many {
		if b.Type == "network" {
			k.later(address, b.TypeRange.Ptr(), "more than one network block", "A sandbox has at most one network.")
		} else {
			k.fail(address, b.TypeRange.Ptr(), "Duplicate block",
				"%s already has a %s block on line %d. Merge the two.", capital(what), b.Type, previous.TypeRange.Start.Line)
		}
		return true
	}
	first[b.Type] = b
	if rule.label == "" || len(b.Labels) != 1 {
		return false
	}
	key := [2]string{b.Type, b.Labels[0]}
	if previous := labels[key]; previous != nil && s != rootSchema {
		k.fail(address, b.LabelRanges[0].Ptr(), "Duplicate block",
			"%s already has a block %s on line %d. Give this one another name.", capital(what), header(b), previous.TypeRange.Start.Line)
		return true
	}
	labels[key] = b
	return false
}

func (k *sink) unknownBlock(address string, b *hclsyntax.Block, s *schema, what string) {
	if _, isAttr := s.attrs[b.Type]; isAttr {
		k.fail(address, b.TypeRange.Ptr(), "Argument written as a block",
			"%q is an argument of %s. Write %s = … with an equals sign.", b.Type, what, b.Type)
		return
	}
	hint := ended(s.meant(b.Type))
	switch b.Type {
	case dynamic:
		if s != rootSchema {
			break
		}
		hint = ": blocks of the configuration are repeated by for_each or count in them."
	case "terraform":
		hint = ". Did you mean \"pinfold\"?"
	case "resource", "data", "provider":
		hint = ". Resources are blocks of their own here, such as sandbox \"py\" { … }."
	}
	k.fail(address, b.TypeRange.Ptr(), "Unknown block", "%s has no block %q%s", capital(what), b.Type, hint)
}

// checkLabels reports a wrong number of labels.
func (k *sink) checkLabels(address string, b *hclsyntax.Block, rule blockRule) bool {
	want := 0
	if rule.label != "" {
		want = 1
	}
	switch {
	case len(b.Labels) < want:
		k.fail(address, b.TypeRange.Ptr(), "Missing name", "A %s block needs %s as a label: %s \"NAME\" { … }.", b.Type, rule.label, b.Type)
	case len(b.Labels) > want:
		k.fail(address, b.LabelRanges[want].Ptr(), "Too many labels", "A %s block takes %d label(s).", b.Type, want)
	default:
		return true
	}
	return false
}

// later reports what the language has but nothing enforces.
func (k *sink) later(address string, rng *hcl.Range, what, hint string) {
	detail := "Nothing enforces it in this version, so it is refused rather than ignored."
	if hint != no {
		detail += " " + hint
	}
	summary := fmt.Sprintf("%q is not supported yet", what)
	if what != "" && slices.Contains([]byte(what), ' ') {
		summary = capital(what) + " is not supported yet"
	}
	k.fail(address, rng, summary, "%s", detail)
}

// capital makes the first letter a capital one.
func capital(s string) string {
	if s != "" && s[0] >= 'a' && s[0] <= 'z' {
		return string(s[0]-'a'+'A') + s[1:]
	}
	return s
}

// ended closes a sentence that may already end in a question.
func ended(hint string) string {
	if hint == "" {
		return "."
	}
	return hint
}
