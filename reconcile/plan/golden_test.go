package plan

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pinfold/config"
)

var update = flag.Bool("update", false, "write testdata/plans from what the planner does now")

// scenarios are the rules, each by name: what is declared, recorded and seen.
// testdata/plans holds the plan of each as text.
var scenarios = map[string]func() *world{
	// Changes of the files.
	"nothing to do": func() *world {
		return newWorld().network("network.n", "10.88.0.0/24").both("sandbox.a", spec(on("network.n"), claim("work")))
	},
	"create in order":  createInOrder,
	"create paused":    func() *world { return newWorld().declare("sandbox.a", spec(mode("paused"))) },
	"create suspended": func() *world { return newWorld().declare("sandbox.a", spec(mode("suspended"))) },
	"create with -no-start": func() *world {
		return newWorld().declare("sandbox.a", spec()).with(func(o *Options) { o.NoStart = true })
	},
	"in place": func() *world { return changed2(spec(), spec(labels("team", "agents"), shutdown(t0.Add(time.Hour)))) },
	"in place while paused": func() *world {
		return changed2(spec(mode("paused")), spec(mode("paused"), labels("a", "b")), in(Paused))
	},
	"restart": func() *world { return changed2(spec(), spec(command("sh"))) },
	"restart while held paused": func() *world {
		return changed2(spec(), spec(command("sh")), in(Paused), held("paused"))
	},
	"restart without a process":    func() *world { return changed2(spec(), spec(command("sh")), stoppedBy(BySuspend), held("suspended")) },
	"restart of a created one":     func() *world { return changed2(spec(), spec(command("sh")), in(Created), held("created")) },
	"replace keeps the volume":     func() *world { return changed2(spec(claim("work")), spec(claim("work"), userns(false))) },
	"replace without a process":    func() *world { return changed2(spec(), spec(userns(false)), stoppedBy(BySuspend), held("suspended")) },
	"the most costly class wins":   func() *world { return changed2(spec(), spec(labels("a", "b"), command("sh"), userns(false))) },
	"claim added":                  func() *world { return changed2(spec(), spec(claim("work"))) },
	"claim removed":                func() *world { return changed2(spec(claim("work")), spec()) },
	"claim changed":                claimChanged,
	"claim on_destroy is in place": claimOnDestroy,
	"claim added beside a change": func() *world {
		return changed2(spec(), spec(claim("work"))).record("sandbox.b", spec()).declare("sandbox.b", spec(labels("a", "b")))
	},
	"ignore_changes": ignoreChanges,
	"lifecycle": func() *world {
		w := changed2(spec(), spec())
		w.Desired.Sandboxes[0].Lifecycle.PreventDestroy = true
		return w
	},
	"image source changed":      imageSource,
	"image digest changed":      func() *world { return newWorld().both("sandbox.a", spec(), madeFrom("old")) },
	"network range changed":     networkRange,
	"network range cut short":   networkCutShort,
	"network range spelled out": networkSpelledOut,
	"network internet": func() *world {
		w := newWorld().network("network.n", "10.88.0.0/24").both("sandbox.a", spec(on("network.n")))
		w.Desired.Networks[0].Spec.Internet = true
		return w
	},
	"network renamed":             networkRenamed,
	"sandbox moves off a network": movesOff,
	"delete in order":             deleteInOrder,
	"delete says what is lost":    func() *world { return newWorld().record("sandbox.a", spec(claim("work"))) },
	"fixed port changes hands":    portChangesHands,
	"prevent_destroy of a removed block": func() *world {
		return newWorld().record("sandbox.a", spec(), prevented)
	},
	"prevent_destroy written and not applied yet, against destroy": func() *world {
		w := newWorld().both("sandbox.a", spec()).with(func(o *Options) { o.Destroy = true })
		w.Desired.Sandboxes[0].Lifecycle.PreventDestroy = true
		return w
	},
	"prevent_destroy of a volume, written and not applied yet, against destroy": func() *world {
		w := newWorld().with(func(o *Options) { o.Destroy = true })
		w.Records.Volumes["volume.v"] = &Volume{Address: "volume.v", ID: "v", Made: true}
		w.Observed.Volumes = map[string]bool{"v": true}
		w.Desired.Volumes = []config.Resource[config.Volume]{{Address: "volume.v", Lifecycle: config.Lifecycle{PreventDestroy: true}}}
		return w
	},
	"prevent_destroy against destroy": func() *world {
		w := deleteInOrder().with(func(o *Options) { o.Destroy = true })
		w.Records.Sandboxes["sandbox.a"].Lifecycle.PreventDestroy = true
		return w
	},
	"prevent_destroy against replace": func() *world {
		w := changed2(spec(), spec(userns(false)))
		w.Desired.Sandboxes[0].Lifecycle.PreventDestroy = true
		return w
	},
	"prevent_destroy allows recreate": func() *world {
		w := newWorld().both("sandbox.a", spec(), gone, prevented)
		w.Desired.Sandboxes[0].Lifecycle.PreventDestroy = true
		return w
	},
	"unknown after apply":          unknownAfterApply,
	"unknown of something settled": unknownSettled,
	"outputs":                      outputsChange,
	"user replaces": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(2*time.Hour))).with(func(o *Options) { o.Replace = []string{"sandbox.a"} })
	},
	"destroy":                        func() *world { return deleteInOrder().with(func(o *Options) { o.Destroy = true }) },
	"target takes what it refers to": func() *world { return createInOrder().with(func(o *Options) { o.Targets = []string{"sandbox.a"} }) },
	"exclude leaves out dependants":  func() *world { return createInOrder().with(func(o *Options) { o.Excludes = []string{"network.n"} }) },
	"target that does not exist":     func() *world { return createInOrder().with(func(o *Options) { o.Targets = []string{"sandbox.z"} }) },
	"replace of what is excluded": func() *world {
		return newWorld().both("sandbox.top", spec()).with(func(o *Options) { o.Excludes, o.Replace = []string{"sandbox.top"}, []string{"sandbox.top"} })
	},
	"replace of what is no target": func() *world {
		return newWorld().both("sandbox.db", spec()).both("sandbox.two[0]", spec()).both("sandbox.two[1]", spec()).with(func(o *Options) {
			o.Targets, o.Replace = []string{"sandbox.db"}, []string{"sandbox.two"}
		})
	},
	"replace of what is left of an excluded one": func() *world {
		return newWorld().both("sandbox.two[0]", spec()).both("sandbox.two[1]", spec()).with(func(o *Options) {
			o.Excludes, o.Replace = []string{"sandbox.two[0]"}, []string{"sandbox.two"}
		})
	},
	"target a module": func() *world { return inModules().with(func(o *Options) { o.Targets = []string{"module.team"} }) },
	"target an instance of module": func() *world {
		return inModules().with(func(o *Options) { o.Targets = []string{`module.team["red"]`} })
	},
	"target through all instances": func() *world {
		return inModules().with(func(o *Options) { o.Targets = []string{"module.team.module.sub"} })
	},
	"exclude a module": func() *world { return inModules().with(func(o *Options) { o.Excludes = []string{"module.team"} }) },
	"destroy an instance of module": func() *world {
		return inModules().with(func(o *Options) { o.Destroy, o.Targets = true, []string{`module.team["blue"]`} })
	},
	"target a module without anything": func() *world {
		return inModules().with(func(o *Options) { o.Targets = []string{`module.team["green"]`} })
	},
	"refresh only": func() *world {
		return newWorld().both("sandbox.a", spec(), gone).with(func(o *Options) { o.RefreshOnly = true })
	},
	"refresh only tells an own end": func() *world {
		return newWorld().both("sandbox.a", spec(), foundEnded(Outcome{ExitCode: 3})).with(func(o *Options) { o.RefreshOnly = true })
	},
	"without refresh": func() *world {
		return newWorld().both("sandbox.a", spec(), gone).with(func(o *Options) { o.NoRefresh = true })
	},
	"the agent does not look at files": func() *world { return newWorld().record("sandbox.a", spec()).declare("sandbox.b", spec()).keep() },

	// Modes and holds.
	"declared paused":     func() *world { return changed2(spec(), spec(mode("paused"))) },
	"declared suspended":  func() *world { return changed2(spec(), spec(mode("suspended"))) },
	"back to running":     func() *world { return changed2(spec(mode("suspended")), spec(), stoppedBy(BySuspend)) },
	"paused to running":   func() *world { return changed2(spec(mode("paused")), spec(), in(Paused)) },
	"suspended to paused": func() *world { return changed2(spec(mode("suspended")), spec(mode("paused")), stoppedBy(BySuspend)) },
	"hold is a note":      func() *world { return newWorld().both("sandbox.idle", spec(), in(Paused), held("paused")) },
	"hold with a reason": func() *world {
		return newWorld().both("sandbox.a", spec(), in(Paused), held("paused"), func(s *Sandbox, _ *Seen) { s.Hold.Reason = "maintenance" })
	},
	"held and not yet so":       func() *world { return newWorld().both("sandbox.a", spec(), held("suspended")).keep() },
	"newer mode drops the hold": func() *world { return changed2(spec(), spec(mode("paused")), stoppedBy(BySuspend), held("suspended")) },
	"release-holds": func() *world {
		return newWorld().both("sandbox.a", spec(), in(Paused), held("paused")).with(func(o *Options) { o.ReleaseHolds = true })
	},
	"thawed from outside":       func() *world { return newWorld().both("sandbox.a", spec(mode("paused"))).keep() },
	"created but never started": func() *world { return newWorld().both("sandbox.a", spec(), in(Created)).keep() },
	"held created":              func() *world { return newWorld().both("sandbox.a", spec(), in(Created), held("created")) },

	// Leases and expiry.
	"deadline ahead":        func() *world { return newWorld().both("sandbox.a", spec(shutdown(t0.Add(time.Hour)))).keep() },
	"deadline equal to now": func() *world { return newWorld().both("sandbox.a", spec(shutdown(t0))).keep() },
	"500 ms left is alive": func() *world {
		return newWorld().both("sandbox.a", spec(shutdown(t0.Add(500*time.Millisecond)))).keep()
	},
	"ttl before shutdown_time": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), shutdown(t0.Add(time.Minute)))).keep()
	},
	"shutdown_time before ttl": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(2*time.Hour), shutdown(t0.Add(-time.Minute)))).keep()
	},
	"expiry beats a hold": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour)), in(Paused), held("paused")).keep()
	},
	"expiry with delete says nothing of the hold": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("delete")), in(Paused), held("paused")).keep()
	},
	"expiry of a suspended one": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), mode("suspended")), stoppedBy(BySuspend)).keep()
	},
	"expiry of a lost one": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), onLost("retain")), in(Lost)).keep()
	},
	"expiry of a pending one": func() *world { return newWorld().both("sandbox.a", spec(shutdown(t0)), pending).keep() },
	"expiry with delete": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("delete"), claim("work"))).keep()
	},
	"crash between Expired and teardown": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour)), expiredAt(t0, TTLExpiry, false)).keep()
	},
	"failing teardown is retried later": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("delete")), expiredAt(t0, TTLExpiry, false), retry(Retry{Attempts: 1, NextAt: t0.Add(time.Second), Error: "device busy"})).keep()
	},
	"retained and expired": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour)), expiredAt(t0.Add(-time.Minute), TTLExpiry, true))
	},
	"running set while expired": func() *world {
		return changed2(spec(ttl(time.Hour), mode("suspended")), spec(ttl(time.Hour)), expiredAt(t0.Add(-time.Minute), TTLExpiry, true))
	},
	"clock steps back while expired": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour)), expiredAt(t0, TTLExpiry, true)).at(t0.Add(-time.Minute))
	},
	"revival by a later deadline": func() *world {
		return changed2(spec(shutdown(t0.Add(-time.Minute))), spec(shutdown(t0.Add(time.Hour))), expiredAt(t0.Add(-time.Minute), ShutdownTime, true))
	},
	"revival by no deadline": func() *world { return changed2(spec(ttl(time.Hour)), spec(), expiredAt(t0, TTLExpiry, true)) },
	"deadline cleared while suspended": func() *world {
		return changed2(spec(mode("suspended"), shutdown(t0)), spec(mode("suspended")), expiredAt(t0, ShutdownTime, true))
	},
	"revival cut short": func() *world {
		return newWorld().both("sandbox.a", spec(shutdown(t0.Add(time.Hour))), expiredAt(t0.Add(-time.Minute), ShutdownTime, true)).keep()
	},
	"revival does not rerun a finished one": func() *world {
		return changed2(spec(shutdown(t0)), spec(), expiredAt(t0, ShutdownTime, true), exited(0))
	},
	"retain to delete after expiry": func() *world {
		return changed2(spec(ttl(time.Hour)), spec(ttl(time.Hour), policy("delete")), expiredAt(t0, TTLExpiry, true))
	},
	"ttl shortened expires at once": func() *world { return changed2(spec(ttl(2*time.Hour)), spec(ttl(time.Minute))) },
	"editing ttl drops renewals": func() *world {
		return changed2(spec(ttl(2*time.Hour)), spec(ttl(3*time.Hour)), renewed(t0.Add(24*time.Hour)))
	},
	"renewal is no drift": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(2*time.Hour)), renewed(t0.Add(24*time.Hour)))
	},
	"past at first creation": func() *world { return newWorld().declare("sandbox.a", spec(shutdown(t0))) },
	"stays ended": func() *world {
		return newWorld().declare("sandbox.a", spec(ttl(time.Hour))).ended("sandbox.a", "ttl_expiry", spec(ttl(time.Hour)))
	},
	"stays ended for the agent": func() *world {
		return newWorld().declare("sandbox.a", spec(ttl(time.Hour))).ended("sandbox.a", "ttl_expiry", spec(ttl(time.Hour))).keep()
	},
	"ended, both past": func() *world {
		s := spec(ttl(time.Hour), shutdown(t0.Add(-time.Minute)))
		return newWorld().declare("sandbox.a", s).ended("sandbox.a", "shutdown_time", s)
	},
	"ended, clock steps back": func() *world {
		s := spec(shutdown(t0))
		return newWorld().declare("sandbox.a", s).ended("sandbox.a", "shutdown_time", s).at(t0.Add(-time.Hour))
	},
	"ended, later deadline": func() *world {
		return newWorld().declare("sandbox.a", spec(shutdown(t0.Add(time.Hour)))).ended("sandbox.a", "shutdown_time", spec(shutdown(t0)))
	},
	"ended, deadline removed": func() *world {
		return newWorld().declare("sandbox.a", spec()).ended("sandbox.a", "shutdown_time", spec(shutdown(t0)))
	},
	"ended, longer ttl": func() *world {
		return newWorld().declare("sandbox.a", spec(ttl(2*time.Hour))).ended("sandbox.a", "ttl_expiry", spec(ttl(time.Hour)))
	},
	"ended, replaced by the user": func() *world {
		return newWorld().declare("sandbox.a", spec(ttl(time.Hour))).ended("sandbox.a", "ttl_expiry", spec(ttl(time.Hour))).with(func(o *Options) { o.Replace = []string{"sandbox.a"} })
	},
	"ended, block removed": func() *world { return newWorld().ended("sandbox.a", "ttl_expiry", spec(ttl(time.Hour))) },
	"ended, destroyed": func() *world {
		return newWorld().declare("sandbox.a", spec()).ended("sandbox.a", "lost", spec()).with(func(o *Options) { o.Destroy = true })
	},
	"ended by loss":                func() *world { return newWorld().declare("sandbox.a", spec()).ended("sandbox.a", "lost", spec()) },
	"max_lifetime at creation":     func() *world { return newWorld().declare("sandbox.a", spec(ttl(48*time.Hour))).cap(24 * time.Hour) },
	"max_lifetime and no deadline": func() *world { return newWorld().declare("sandbox.a", spec()).cap(24 * time.Hour) },
	"max_lifetime and a changed deadline": func() *world {
		return changed2(spec(ttl(2*time.Hour)), spec(ttl(2*time.Hour), shutdown(t0.Add(100*time.Hour))), renewed(time.Time{})).cap(24 * time.Hour)
	},
	"max_lifetime missed by a nanosecond": func() *world {
		return newWorld().declare("sandbox.a", spec(ttl(24*time.Hour+1))).cap(24 * time.Hour)
	},
	"max_lifetime leaves what is unchanged": func() *world { return newWorld().both("sandbox.a", spec()).cap(24 * time.Hour) },
	"deadlines told to the second": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(2*time.Hour)), renewed(t0.Add(time.Hour+123*time.Nanosecond))).at(t0.Add(7 * time.Millisecond)).with(func(o *Options) { o.Replace = []string{"sandbox.a"} })
	},
	"deadlines within a second": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(2*time.Hour)), renewed(t0.Add(2*time.Hour))).at(t0.Add(7 * time.Millisecond)).with(func(o *Options) { o.Replace = []string{"sandbox.a"} })
	},
	"replacing an expired one": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour)), expiredAt(t0, TTLExpiry, true)).with(func(o *Options) { o.Replace = []string{"sandbox.a"} })
	},

	// Loss, failure, exits.
	"lost": func() *world { return newWorld().both("sandbox.a", spec(claim("work"), ttl(2*time.Hour)), gone).keep() },
	"lost by a reboot": func() *world {
		w := newWorld().both("sandbox.a", spec(), gone).keep()
		w.Observed.BootID = "boot-2"
		return w
	},
	"lost, fresh":    func() *world { return newWorld().both("sandbox.a", spec(onLost("recreate-fresh")), gone).keep() },
	"lost, retained": func() *world { return newWorld().both("sandbox.a", spec(onLost("retain")), gone) },
	"lost, deleted":  func() *world { return newWorld().both("sandbox.a", spec(onLost("delete"), claim("work")), gone).keep() },
	"lost again, backs off": func() *world {
		return newWorld().both("sandbox.a", spec(), gone, retry(Retry{Attempts: 1, NextAt: t0.Add(time.Second)})).keep()
	},
	"lost while held paused": func() *world { return newWorld().both("sandbox.a", spec(), gone, held("paused")).keep() },
	"lost and its layer too": func() *world { return newWorld().both("sandbox.a", spec(), gone, noLayer).keep() },
	"killed from outside": func() *world {
		return newWorld().both("sandbox.a", spec(), foundEnded(Outcome{ExitCode: 137, Signal: 9})).keep()
	},
	"killed by an orderly shutdown": func() *world {
		return newWorld().both("sandbox.a", spec(), foundEnded(Outcome{ExitCode: 0, Outside: 15})).keep()
	},
	"killed again, backs off": func() *world {
		return newWorld().both("sandbox.a", spec(), foundEnded(Outcome{ExitCode: 137, Signal: 9}), retry(Retry{Attempts: 1, NextAt: t0.Add(time.Second)})).keep()
	},
	"killed, new generation": func() *world {
		return changed2(spec(), spec(command("sh")), foundEnded(Outcome{ExitCode: 137, Signal: 9}), retry(Retry{Attempts: 1, NextAt: t0.Add(time.Second)}))
	},
	"own exit":           func() *world { return newWorld().both("sandbox.a", spec(), foundEnded(Outcome{ExitCode: 3})) },
	"own exit, recorded": func() *world { return newWorld().both("sandbox.a", spec(), exited(3)) },
	"own exit, replaced by the user": func() *world {
		return newWorld().both("sandbox.a", spec(), exited(3)).with(func(o *Options) { o.Replace = []string{"sandbox.a"} })
	},
	"out of memory": func() *world {
		return newWorld().both("sandbox.a", spec(), foundEnded(Outcome{ExitCode: 137, Signal: 9, OOM: true}))
	},
	"out of memory without an outcome": func() *world {
		return newWorld().both("sandbox.a", spec(), gone, func(_ *Sandbox, s *Seen) { s.OOMKills = 1 })
	},
	"failed, for the agent":  func() *world { return newWorld().both("sandbox.a", spec(), in(Failed), failReason).keep() },
	"failed, for a user":     func() *world { return newWorld().both("sandbox.a", spec(), in(Failed), failReason) },
	"failed, new generation": func() *world { return changed2(spec(), spec(command("sh")), in(Failed)) },
	"creation is tried again": func() *world {
		return newWorld().both("sandbox.a", spec(), pending, retry(Retry{Attempts: 1, NextAt: t0, Error: "no such file"})).keep()
	},
	"creation waits": func() *world {
		return newWorld().both("sandbox.a", spec(), pending, retry(Retry{Attempts: 1, NextAt: t0.Add(time.Second), Error: "no such file"})).keep()
	},
	"creation waits, but not for a user": func() *world {
		return newWorld().both("sandbox.a", spec(), pending, retry(Retry{Attempts: 1, NextAt: t0.Add(time.Second), Error: "no such file"}))
	},
	"look-up failure": func() *world { return changed2(spec(), spec(command("sh")), unknown) },
	"look-up failure, block gone": func() *world {
		return newWorld().network("network.n", "10.88.0.0/24").record("sandbox.a", spec(on("network.n")), unknown).drop("network.n")
	},
	"one survivor": func() *world { return newWorld().both("sandbox.a", spec(), gone).survivor("i-b", "uid-a").keep() },
	"two survivors": func() *world {
		return newWorld().both("sandbox.a", spec(), gone).survivor("i-b", "uid-a").survivor("i-c", "uid-a").keep()
	},
	"a doomed instance is no survivor": func() *world {
		return newWorld().both("sandbox.a", spec(), pending, func(s *Sandbox, _ *Seen) { s.Doomed = []string{"i-b"} }).survivor("i-b", "uid-a").keep()
	},
	"still dying": func() *world {
		return newWorld().both("sandbox.a", spec(), gone, func(_ *Sandbox, s *Seen) { s.Dying = true }).keep()
	},
	"orphan":       func() *world { return newWorld().survivor("i-x", "uid-nobody") },
	"link missing": func() *world { return newWorld().both("sandbox.a", spec(), missing("link", "rules")).keep() },
	"rootfs gone":  func() *world { return newWorld().both("sandbox.a", spec(), missing("rootfs")).keep() },
	"cgroup gone while paused": func() *world {
		return newWorld().both("sandbox.a", spec(mode("paused")), in(Paused), missing("cgroup")).keep()
	},
	"bridge missing": func() *world {
		w := newWorld().network("network.n", "10.88.0.0/24").both("sandbox.a", spec(on("network.n")), missing("link")).keep()
		w.Observed.Networks = map[string]SeenNetwork{}
		return w
	},
	"volume directory gone": func() *world {
		w := newWorld().volume("volume.v").both("sandbox.a", spec(mount("volume.v"))).keep()
		w.Observed.Volumes["v-volume.v"] = false
		return w
	},
	"claim directory gone": func() *world {
		w := newWorld().both("sandbox.a", spec(claim("work"))).keep()
		w.Observed.Volumes["v-a-work"] = false
		return w
	},
	"claim directories gone while stopped": func() *world {
		w := newWorld().both("sandbox.a", spec(claim("work"), claim2("cache"), mode("suspended")), stoppedBy(BySuspend)).keep()
		w.Observed.Volumes["v-a-work"], w.Observed.Volumes["v-a-cache"] = false, false
		return w
	},
	// Idleness.
	"idle": func() *world { return newWorld().both("sandbox.a", spec(idle(time.Hour))).watched().keep() },
	"idle, suspended": func() *world {
		return newWorld().both("sandbox.a", spec(idle(time.Hour), idleSuspends)).watched().keep()
	},
	"idle in a nanosecond": func() *world {
		return newWorld().both("sandbox.a", spec(idle(time.Hour+1))).watched().keep()
	},
	"idle, but nobody watches": func() *world { return newWorld().both("sandbox.a", spec(idle(time.Minute))) },
	"used a while ago": func() *world {
		return newWorld().both("sandbox.a", spec(idle(time.Hour))).used("sandbox.a", Activity{Last: t0.Add(-time.Minute)}).keep()
	},
	"used a while ago, as recorded": func() *world {
		return newWorld().both("sandbox.a", spec(idle(time.Hour)), func(s *Sandbox, _ *Seen) { s.LastActivity = t0.Add(-time.Minute) }).watched().keep()
	},
	"in use": func() *world {
		return newWorld().both("sandbox.a", spec(idle(time.Minute))).used("sandbox.a", Activity{Last: t0.Add(-time.Hour), Busy: true}).keep()
	},
	"idle over an operator's hold": func() *world {
		return newWorld().both("sandbox.a", spec(mode("suspended"), idle(time.Hour)), held("running")).watched().keep()
	},
	"idle and held paused by an operator": func() *world {
		return newWorld().both("sandbox.a", spec(idle(time.Minute)), in(Paused), held("paused")).watched().keep()
	},
	"held by idle": func() *world {
		return newWorld().both("sandbox.a", spec(idle(time.Minute)), in(Paused), heldBy("idle", "paused")).watched().keep()
	},
	"idle_timeout removed": func() *world {
		return changed2(spec(idle(time.Minute)), spec(), in(Paused), heldBy("idle", "paused")).watched()
	},
	"idle_timeout removed, for the agent": func() *world {
		return newWorld().both("sandbox.a", spec(), in(Paused), heldBy("idle", "paused")).watched().keep()
	},
	"idle_timeout removed while suspended": func() *world {
		return changed2(spec(idle(time.Minute), idleSuspends), spec(), stoppedBy(BySuspend), heldBy("idle", "suspended")).watched()
	},
	"idle_timeout removed over an operator's hold": func() *world {
		return changed2(spec(mode("suspended"), idle(time.Minute)), spec(mode("suspended")), in(Paused), held("running"), heldBy("idle", "paused")).watched()
	},
	"newer mode drops an idle hold and what it lies over": func() *world {
		return changed2(spec(mode("suspended"), idle(time.Minute)), spec(idle(time.Minute)), in(Paused), held("running"), heldBy("idle", "paused")).watched()
	},
	"release-holds drops an idle hold": func() *world {
		return newWorld().both("sandbox.a", spec(idle(time.Minute)), in(Paused), heldBy("idle", "paused")).watched().with(func(o *Options) { o.ReleaseHolds = true })
	},
	"deadline beats idleness": func() *world {
		return newWorld().both("sandbox.a", spec(idle(time.Minute), ttl(time.Hour))).watched().keep()
	},
	"idle and changed in place": func() *world {
		return changed2(spec(idle(time.Hour)), spec(idle(time.Hour), labels("a", "b"))).watched()
	},
	"idle and restarted": func() *world {
		return changed2(spec(idle(time.Hour)), spec(idle(time.Hour), command("sh"))).watched()
	},

	// Expiry by pause.
	"expiry by pause": func() *world { return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause"))).keep() },
	"expiry by pause, held paused by an operator": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause")), in(Paused), held("paused")).keep()
	},
	"expiry by pause, declared paused": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause"), mode("paused")), in(Paused)).keep()
	},
	"expiry by pause over an idle hold": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause"), mode("suspended"), idle(time.Minute)), in(Paused), held("running"), heldBy("idle", "paused")).keep()
	},
	"expiry by pause without a process": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause"), mode("suspended")), stoppedBy(BySuspend)).keep()
	},
	"expiry by pause of a created one": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause")), in(Created), held("created")).keep()
	},
	"paused by expiry": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause")), expiredPaused(t0.Add(-time.Minute), TTLExpiry)).keep()
	},
	"paused by expiry, clock steps back": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause")), expiredPaused(t0, TTLExpiry)).at(t0.Add(-time.Minute)).keep()
	},
	"paused by expiry, crash in between": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause")), expiredAt(t0, TTLExpiry, false)).keep()
	},
	"paused by expiry, thawed from outside": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause")), expiredPaused(t0, TTLExpiry), in(Running)).keep()
	},
	"paused by expiry, then its process is gone": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause")), expiredPaused(t0, TTLExpiry), gone).keep()
	},
	"paused by expiry, then killed": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause")), expiredPaused(t0, TTLExpiry), foundEnded(Outcome{ExitCode: 137, Signal: 9})).keep()
	},
	"paused by expiry, later shutdown_time": func() *world {
		return changed2(spec(shutdown(t0), policy("pause")), spec(shutdown(t0.Add(time.Hour)), policy("pause")), expiredPaused(t0, ShutdownTime))
	},
	"paused by expiry, ttl removed": func() *world {
		return changed2(spec(ttl(time.Hour), policy("pause")), spec(policy("pause")), expiredPaused(t0, TTLExpiry))
	},
	"paused by expiry, longer ttl": func() *world {
		return changed2(spec(ttl(time.Hour), policy("pause")), spec(ttl(3*time.Hour), policy("pause")), expiredPaused(t0, TTLExpiry))
	},
	"paused by expiry over an operator's hold, later deadline": func() *world {
		return changed2(spec(ttl(time.Hour), policy("pause")), spec(ttl(3*time.Hour), policy("pause")), held("paused"), expiredPaused(t0, TTLExpiry))
	},
	"paused by expiry, running set": func() *world {
		return changed2(spec(ttl(time.Hour), policy("pause"), mode("paused")), spec(ttl(time.Hour), policy("pause")), expiredPaused(t0, TTLExpiry))
	},
	"paused by expiry, to delete": func() *world {
		return changed2(spec(ttl(time.Hour), policy("pause")), spec(ttl(time.Hour), policy("delete")), expiredPaused(t0, TTLExpiry))
	},
	"paused by expiry, to retain": func() *world {
		return changed2(spec(ttl(time.Hour), policy("pause")), spec(ttl(time.Hour)), expiredPaused(t0, TTLExpiry))
	},
	"paused by expiry, image changed": func() *world {
		return changed2(spec(ttl(time.Hour), policy("pause")), spec(ttl(time.Hour), policy("pause"), userns(false)), expiredPaused(t0, TTLExpiry)).at(t0)
	},
	"paused by expiry of its ttl, shutdown_time ahead": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), shutdown(t0.Add(time.Hour)), policy("pause")), expiredPaused(t0, TTLExpiry)).keep()
	},
	"paused by expiry of its ttl, shutdown_time passed too": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), shutdown(t0.Add(time.Hour)), policy("pause")), expiredPaused(t0, TTLExpiry)).at(t0.Add(time.Hour)).keep()
	},
	"resumed after its shutdown_time": func() *world {
		return newWorld().both("sandbox.a", spec(shutdown(t0.Add(-time.Minute)), policy("pause")), func(s *Sandbox, _ *Seen) {
			s.Lease.ActedOn, s.Lease.Until = s.Spec.ShutdownTime, t0.Add(time.Hour)
		}).keep()
	},
	"clock stands while paused": func() *world {
		return newWorld().both("sandbox.a", spec(ttl(time.Hour), clockRuns, mode("paused")), in(Paused), func(s *Sandbox, _ *Seen) { s.Lease = s.Lease.OnPause(&s.Spec) }).keep()
	},

	// Restarts.
	"exit under on-failure": func() *world {
		return newWorld().both("sandbox.a", spec(restartMode("on-failure", 0)), foundEnded(Outcome{ExitCode: 3})).keep()
	},
	"success under on-failure": func() *world {
		return newWorld().both("sandbox.a", spec(restartMode("on-failure", 0)), foundEnded(Outcome{})).keep()
	},
	"success under always": func() *world {
		return newWorld().both("sandbox.a", spec(restartMode("always", 0)), foundEnded(Outcome{})).keep()
	},
	"signal under on-failure": func() *world {
		return newWorld().both("sandbox.a", spec(restartMode("on-failure", 0)), foundEnded(Outcome{ExitCode: 139, Signal: 11})).keep()
	},
	"out of memory under on-failure": func() *world {
		return newWorld().both("sandbox.a", spec(restartMode("on-failure", 0)), gone, func(_ *Sandbox, s *Seen) { s.OOMKills = 1 }).keep()
	},
	"restart waits": func() *world {
		return newWorld().both("sandbox.a", spec(restartMode("always", 5)), startedAt(t0.Add(-2*time.Second)), foundEnded(Outcome{ExitCode: 1}), restarted(2, t0.Add(time.Second))).keep()
	},
	"restart waits, for a user too": func() *world {
		return newWorld().both("sandbox.a", spec(restartMode("always", 5)), startedAt(t0.Add(-2*time.Second)), foundEnded(Outcome{ExitCode: 1}), restarted(2, t0.Add(time.Second)))
	},
	"restart is due": func() *world {
		return newWorld().both("sandbox.a", spec(restartMode("always", 5)), startedAt(t0.Add(-2*time.Second)), foundEnded(Outcome{ExitCode: 1}), restarted(2, t0)).keep()
	},
	"restarts used up": func() *world {
		return newWorld().both("sandbox.a", spec(restartMode("always", 2)), startedAt(t0.Add(-2*time.Second)), foundEnded(Outcome{ExitCode: 1}), restarted(2, t0)).keep()
	},
	"restarts used up, for a user": func() *world {
		return newWorld().both("sandbox.a", spec(restartMode("always", 2)), startedAt(t0.Add(-2*time.Second)), foundEnded(Outcome{ExitCode: 1}), restarted(2, t0))
	},
	"restarts begin anew after the window": func() *world {
		return newWorld().both("sandbox.a", spec(restartMode("always", 2)), foundEnded(Outcome{ExitCode: 1}), restarted(2, t0.Add(time.Minute))).keep()
	},
	"restarts begin anew with a new generation": func() *world {
		return changed2(spec(restartMode("always", 2)), spec(restartMode("always", 2), command("sh")), startedAt(t0.Add(-2*time.Second)), foundEnded(Outcome{ExitCode: 1}), restarted(2, t0.Add(time.Minute)))
	},
	"restart of one declared paused": func() *world {
		return newWorld().both("sandbox.a", spec(restartMode("always", 0), mode("paused")), foundEnded(Outcome{ExitCode: 1})).keep()
	},
	"no restart of a suspended one": func() *world {
		return newWorld().both("sandbox.a", spec(restartMode("always", 0), mode("suspended")), exited(1)).keep()
	},
	"no restart of an expired one": func() *world {
		return newWorld().both("sandbox.a", spec(restartMode("always", 0), ttl(time.Hour)), foundEnded(Outcome{ExitCode: 1})).keep()
	},

	// Warnings.
	"deadline is near": func() *world {
		return newWorld().both("sandbox.a", spec(shutdown(t0.Add(10*time.Minute)))).warns(15 * time.Minute).keep()
	},
	"deadline comes near": func() *world {
		return newWorld().both("sandbox.a", spec(shutdown(t0.Add(time.Hour)))).warns(15 * time.Minute).keep()
	},
	"warned already": func() *world {
		return newWorld().both("sandbox.a", spec(shutdown(t0.Add(10*time.Minute))), func(s *Sandbox, _ *Seen) { s.Warned = s.Spec.ShutdownTime }).warns(15 * time.Minute).keep()
	},
	"warned of an earlier deadline": func() *world {
		return newWorld().both("sandbox.a", spec(shutdown(t0.Add(10*time.Minute))), func(s *Sandbox, _ *Seen) { s.Warned = t0.Add(time.Minute) }).warns(15 * time.Minute).keep()
	},
	"no warning for a user": func() *world {
		return newWorld().both("sandbox.a", spec(shutdown(t0.Add(10*time.Minute)))).warns(15 * time.Minute)
	},

	"older generation runs": func() *world {
		return newWorld().both("sandbox.a", spec(), func(s *Sandbox, _ *Seen) { s.Generation = 2 }).keep()
	},
}

func userns(on bool) func(*config.Sandbox) {
	return func(s *config.Sandbox) { s.Security.UserNamespace = on }
}
func prevented(s *Sandbox, _ *Seen)  { s.Lifecycle.PreventDestroy = true }
func failReason(s *Sandbox, _ *Seen) { s.Instance.FailReason = "provision_timeout" }
func noLayer(_ *Sandbox, seen *Seen) { seen.Layer = false }
func madeFrom(d string) func(*Sandbox, *Seen) {
	return func(s *Sandbox, _ *Seen) { s.Instance.Image = d }
}
func renewed(until time.Time) func(*Sandbox, *Seen) {
	return func(s *Sandbox, _ *Seen) { s.Lease.Until, s.Lease.Renewed = until, true }
}

// changed2 is a world whose sandbox.a was recorded as one thing and is declared as another.
func changed2(was, is config.Sandbox, edit ...func(*Sandbox, *Seen)) *world {
	return newWorld().record("sandbox.a", was, edit...).declare("sandbox.a", is)
}

// claim2 adds another claim.
func claim2(name string) func(*config.Sandbox) {
	return func(s *config.Sandbox) { s.Volumes[name] = config.Claim{Path: "/" + name} }
}

func (w *world) cap(d time.Duration) *world { w.Limits.MaxLifetime = d; return w }

// inModules has sandboxes in both instances of a module, in one below, in another
// module whose name begins alike, and outside; one in "blue" is to come.
func inModules() *world {
	w := newWorld().both("sandbox.team", spec())
	for _, a := range []string{`module.team["red"].sandbox.a`, `module.team["red"].module.sub.sandbox.b[0]`, `module.team["blue"].sandbox.a`, `module.team2.sandbox.a`} {
		w.record(a, spec()).declare(a, spec(mode("suspended")))
	}
	return w.declare(`module.team["blue"].module.sub.sandbox.b[0]`, spec())
}

func (w *world) ended(address, reason string, s config.Sandbox) *world {
	w.Records.Ended[address] = &Ended{Address: address, UID: "uid-old", Reason: reason, Deadline: t0.Add(-time.Minute),
		ShutdownTime: s.ShutdownTime, TTL: s.Lifetime.TTL, At: t0.Add(-time.Minute)}
	return w
}

func (w *world) survivor(id, uid string) *world {
	w.Observed.Instances[id] = Seen{UID: uid, Layer: true, Alive: true, Started: true, PID: 300, StartTime: 8}
	return w
}

// drop takes a network's block out of the files.
func (w *world) drop(network string) *world {
	var kept []config.Resource[config.Network]
	for _, n := range w.Desired.Networks {
		if n.Address != network {
			kept = append(kept, n)
		}
	}
	w.Desired.Networks = kept
	return w
}

func createInOrder() *world {
	w := newWorld()
	w.Records.Images = map[string]*Image{}
	w.Desired.Networks = []config.Resource[config.Network]{{Address: "network.n"}}
	w.Desired.Volumes = []config.Resource[config.Volume]{{Address: "volume.v"}}
	w.declare("sandbox.a", spec(on("network.n"), mount("volume.v")))
	return w.declare("sandbox.a2", spec(), func(r *config.Resource[config.Sandbox]) { r.DependsOn = append(r.DependsOn, "sandbox.b") }).
		declare("sandbox.b", spec(env("URL", "")), func(r *config.Resource[config.Sandbox]) {
			r.Unknown, r.DependsOn = []string{"env.URL"}, append(r.DependsOn, "sandbox.a")
		})
}

func deleteInOrder() *world {
	w := newWorld().network("network.n", "10.88.0.0/24").volume("volume.v")
	w.record("sandbox.a", spec(on("network.n"), mount("volume.v")))
	w.record("sandbox.b", spec(), func(s *Sandbox, _ *Seen) { s.DependsOn = []string{"sandbox.a"} })
	w.Desired = &config.Desired{}
	return w
}

func claimChanged() *world {
	w := changed2(spec(claim("work")), spec(claim("work")))
	w.Desired.Sandboxes[0].Spec.Volumes = map[string]config.Claim{"work": {Path: "/elsewhere"}}
	return w
}

func claimOnDestroy() *world {
	w := changed2(spec(claim("work")), spec(claim("work")))
	w.Desired.Sandboxes[0].Spec.Volumes = map[string]config.Claim{"work": {Path: "/work", OnDestroy: "delete"}}
	return w
}

func ignoreChanges() *world {
	w := changed2(spec(), spec(labels("a", "b"), command("sh"), userns(false)))
	w.Desired.Sandboxes[0].Lifecycle.IgnoreChanges = []string{"labels", "security"}
	w.Records.Sandboxes["sandbox.a"].Lifecycle.IgnoreChanges = []string{"labels", "security"}
	return w
}

func imageSource() *world {
	w := newWorld().both("sandbox.a", spec())
	w.Desired.Images[0].Spec.Source = "dir:/srv/root"
	return w
}

func networkRange() *world {
	w := newWorld().network("network.n", "10.88.0.0/24").both("sandbox.a", spec(on("network.n"))).both("sandbox.b", spec()).
		both("sandbox.c", spec(on("network.n")), stoppedBy(BySuspend), held("suspended"))
	w.Desired.Networks[0].Spec.CIDR = "10.99.0.0/24"
	return w
}

func networkCutShort() *world {
	w := newWorld().network("network.n", "10.99.0.0/24").both("sandbox.a", spec(on("network.n")), stoppedBy(BySuspend)).keep()
	return w
}

func networkSpelledOut() *world {
	w := newWorld().network("network.n", "10.88.0.0/24").both("sandbox.a", spec(on("network.n")))
	w.Records.Networks["network.n"].Spec.CIDR = ""
	return w
}

func networkRenamed() *world {
	w := newWorld().network("network.old", "10.88.0.0/24").record("sandbox.a", spec(on("network.old"))).drop("network.old")
	w.Desired.Networks = append(w.Desired.Networks, config.Resource[config.Network]{Address: "network.new", Spec: config.Network{CIDR: "10.88.0.0/24"}})
	return w.declare("sandbox.a", spec(on("network.new")))
}

func movesOff() *world {
	return newWorld().network("network.old", "10.88.0.0/24").record("sandbox.a", spec(on("network.old"))).drop("network.old").
		declare("sandbox.a", spec())
}

func portChangesHands() *world {
	port := func(s *config.Sandbox) { s.Ports = map[string]config.Port{"http": {Container: 80, Host: 8080}} }
	return newWorld().record("sandbox.z", spec(port)).declare("sandbox.a", spec(port))
}

func unknownAfterApply() *world {
	w := newWorld()
	w.Desired.Networks = []config.Resource[config.Network]{{Address: "network.n"}}
	return w.record("sandbox.a", spec(env("NET", "10.0.0.1"))).
		declare("sandbox.a", spec(env("NET", "")), func(r *config.Resource[config.Sandbox]) {
			r.Unknown, r.DependsOn = []string{"env.NET"}, append(r.DependsOn, "network.n")
		})
}

func unknownSettled() *world {
	return newWorld().declare("sandbox.gone", spec(ttl(time.Hour))).ended("sandbox.gone", "ttl_expiry", spec(ttl(time.Hour))).
		record("sandbox.a", spec(env("NET", "10.0.0.1"))).
		declare("sandbox.a", spec(env("NET", "")), func(r *config.Resource[config.Sandbox]) {
			r.Unknown, r.DependsOn = []string{"env.NET"}, append(r.DependsOn, "sandbox.gone")
		}).
		declare("sandbox.b", spec(env("NET", "")), func(r *config.Resource[config.Sandbox]) {
			r.Unknown, r.DependsOn = []string{"env.NET"}, append(r.DependsOn, "sandbox.gone")
		})
}

func outputsChange() *world {
	w := newWorld().both("sandbox.a", spec())
	w.Desired.Outputs = []config.Output{{Name: "new", Value: []byte(`1`)}, {Name: "other", Value: []byte(`2`)}, {Name: "same", Value: []byte(`3`)}, {Name: "never", Unknown: true}}
	w.Records.Outputs = map[string]*config.Output{"other": {Name: "other", Value: []byte(`1`)}, "same": {Name: "same", Value: []byte(`3`)}, "old": {Name: "old", Value: []byte(`4`)}}
	return w
}

func TestScenarios(t *testing.T) {
	dir := filepath.Join("testdata", "plans")
	known := map[string]bool{}
	for name, build := range scenarios {
		file := filepath.Join(dir, strings.NewReplacer(" ", "-", ",", "").Replace(name)+".txt")
		known[filepath.Base(file)] = true
		t.Run(name, func(t *testing.T) {
			w := build()
			got := Make(w.Input).String()
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the plan is\n%s\nand should be\n%s", got, want)
			}
		})
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !known[f.Name()] {
			t.Errorf("%s belongs to no scenario", f.Name())
		}
	}
}

// The network fixture's range holds the address that record reserves.
func TestFixtureAddress(t *testing.T) {
	w := newWorld().network("network.n", "10.88.0.0/24").record("sandbox.a", spec(on("network.n")))
	if !w.Records.Networks["network.n"].CIDR.Contains(w.Records.Sandboxes["sandbox.a"].Net.Address) {
		t.Error(netip.MustParsePrefix("10.88.0.0/24"), "does not hold", w.Records.Sandboxes["sandbox.a"].Net.Address)
	}
}
