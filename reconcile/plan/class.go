package plan

import "strings"

// Class is what a change of an attribute costs. The larger, the
// more it costs; of several changes the most costly class wins.
type Class int

const (
	Unclassed Class = iota // no such attribute
	InPlace                // the process keeps running
	Restart                // a new process on the same files
	Replace                // a new instance; the writable layer is lost
	Refused                // cannot be had on an existing sandbox
)

// classes gives each attribute its class: by top-level name, or by two levels
// where a block's attributes differ. A claim's attributes are two levels below
// its block, under the claim's name: see ClassOf.
var classes = map[string]Class{
	"image":        Replace,
	"command":      Restart,
	"env":          Restart,
	"working_dir":  Restart,
	"user":         Restart,
	"hostname":     Restart,
	"labels":       InPlace,
	"mount":        Restart,
	"file":         Restart,
	"port":         InPlace,
	"network":      Replace,
	"network.name": Replace,
	"volume":       Refused,

	"operating_mode":  InPlace,
	"shutdown_time":   InPlace,
	"shutdown_policy": InPlace,
	"stop_signal":     InPlace,
	"stop_grace":      InPlace,

	"lifetime.ttl":                InPlace,
	"lifetime.on_lost":            InPlace,
	"lifetime.start_timeout":      InPlace,
	"lifetime.clock":              InPlace,
	"lifetime.idle_timeout":       InPlace,
	"lifetime.idle_action":        InPlace,
	"lifetime.resume_on_access":   InPlace,
	"lifetime.renew_on_access":    InPlace,
	"lifetime.renew_min_interval": InPlace,

	"restart.mode":         InPlace,
	"restart.max_attempts": InPlace,
	"restart.window":       InPlace,
	"restart.backoff_min":  InPlace,
	"restart.backoff_max":  InPlace,

	"health.command":      InPlace,
	"health.http":         InPlace,
	"health.tcp":          InPlace,
	"health.interval":     InPlace,
	"health.timeout":      InPlace,
	"health.retries":      InPlace,
	"health.start_period": InPlace,

	"resources.cpu":    InPlace,
	"resources.memory": InPlace,
	"resources.pids":   InPlace,

	"security.user_namespace":    Replace,
	"security.drop_capabilities": Restart,
	"security.read_only_root":    Restart,

	"lifecycle.prevent_destroy":       InPlace,
	"lifecycle.ignore_changes":        InPlace,
	"lifecycle.create_before_destroy": InPlace,
	"lifecycle.replace_triggered_by":  InPlace,

	// of a network; its sandboxes are replaced with it
	"cidr":     Replace,
	"internet": InPlace,
	// of an image; the sandboxes made from it are replaced
	"source": Replace,
}

// ClassOf is the class of the attribute at path (env.WHO, command[2],
// security.user_namespace, volume.work.on_destroy), Unclassed when there is no
// such attribute.
func ClassOf(path string) Class {
	first, rest, nested := strings.Cut(path, ".")
	first, _, _ = strings.Cut(first, "[")
	if first == "volume" && strings.HasSuffix(rest, ".on_destroy") {
		return InPlace
	}
	if c, ok := classes[first]; ok {
		return c
	}
	if !nested {
		return Unclassed
	}
	second, _, _ := strings.Cut(rest, ".")
	second, _, _ = strings.Cut(second, "[")
	return classes[first+"."+second]
}
