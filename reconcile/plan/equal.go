package plan

import (
	"maps"
	"slices"

	"pinfold/config"
)

// sameSandbox compares two specs by meaning: an empty list or map is an absent
// one, times are instants. It is what keeps a plan with nothing to do cheap; a
// test changes every field in turn and expects it to notice.
func sameSandbox(a, b *config.Sandbox) bool {
	return a.Image == b.Image &&
		slices.Equal(a.Command, b.Command) &&
		maps.Equal(a.Env, b.Env) &&
		a.WorkingDir == b.WorkingDir &&
		a.User == b.User &&
		a.Hostname == b.Hostname &&
		maps.Equal(a.Labels, b.Labels) &&
		a.OperatingMode == b.OperatingMode &&
		a.ShutdownTime.Equal(b.ShutdownTime) &&
		a.ShutdownPolicy == b.ShutdownPolicy &&
		a.StopSignal == b.StopSignal &&
		a.StopGrace == b.StopGrace &&
		a.Lifetime == b.Lifetime &&
		a.Restart == b.Restart &&
		sameHealth(a.Health, b.Health) &&
		a.Resources == b.Resources &&
		a.Security.UserNamespace == b.Security.UserNamespace &&
		slices.Equal(a.Security.DropCapabilities, b.Security.DropCapabilities) &&
		a.Security.ReadOnlyRoot == b.Security.ReadOnlyRoot &&
		samePointee(a.Network, b.Network) &&
		maps.Equal(a.Ports, b.Ports) &&
		maps.Equal(a.Volumes, b.Volumes) &&
		slices.Equal(a.Mounts, b.Mounts) &&
		maps.Equal(a.Files, b.Files)
}

func samePointee[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func sameHealth(a, b *config.Health) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.Equal(a.Command, b.Command) && a.HTTP == b.HTTP && a.TCP == b.TCP &&
		a.Interval == b.Interval && a.Timeout == b.Timeout && a.Retries == b.Retries && a.StartPeriod == b.StartPeriod
}

func sameLifecycle(a, b config.Lifecycle) bool {
	return a.PreventDestroy == b.PreventDestroy && a.CreateBeforeDestroy == b.CreateBeforeDestroy &&
		slices.Equal(a.IgnoreChanges, b.IgnoreChanges) && slices.Equal(a.ReplaceTriggeredBy, b.ReplaceTriggeredBy)
}
