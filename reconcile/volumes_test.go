package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
)

const sharedVolumes = `
image "base" { source = "host" }
image "tree" { source = "dir:/srv/tree" }
volume "data" {
  lifecycle { prevent_destroy = true }
}
volume "idle" {}
sandbox "a" {
  image   = image.base
  command = ["sim", "write=/data/f:0123456789", "write=/work/g:01234"]
  volume "work" { path = "/work" }
  mount {
    volume = volume.data
    path   = "/data"
  }
}
sandbox "b" {
  image          = image.base
  operating_mode = "suspended"
  command        = ["sleep", "inf"]
  volume "work" {
    path      = "/w"
    read_only = true
  }
  mount {
    volume    = volume.data
    path      = "/d"
    read_only = true
  }
}
`

func (l *lab) volumes(s Service) map[string]VolumeView {
	l.t.Helper()
	res, err := s.Volumes(context.Background())
	if err != nil {
		l.t.Fatal(err)
	}
	all := map[string]VolumeView{}
	for _, v := range res.Volumes {
		all[v.Address] = v
	}
	return all
}

func TestVolumes(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": sharedVolumes})
		e := l.open("apply")
		if all := l.volumes(e); len(all) != 0 {
			t.Errorf("before anything: %v", all)
		}
		made := time.Now()
		l.apply(e, plan.Options{})
		time.Sleep(time.Hour)
		all := l.volumes(e)
		data, work, idle, other := all["volume.data"], all[`sandbox.a volume "work"`], all["volume.idle"], all[`sandbox.b volume "work"`]
		if len(all) != 4 {
			t.Fatalf("there are %v", all)
		}
		wantMounts := []VolumeMount{{"sandbox.a", "/data", false}, {"sandbox.b", "/d", true}}
		a := l.view(e, "sandbox.a")
		wantUsers := []VolumeUser{{Sandbox: "sandbox.a", InstanceID: *a.InstanceID, Phase: plan.Running, PID: *a.PID, Path: "/data", Standing: "own"}}
		if !reflect.DeepEqual(data.Mounts, wantMounts) || !reflect.DeepEqual(data.Users, wantUsers) {
			t.Errorf("volume.data is mounted by %+v, in use by %+v", data.Mounts, data.Users)
		}
		if data.Used == nil || *data.Used != (VolumeUsed{10, 1, true}) || !data.PreventDestroy || data.CreatedAt == nil || !data.CreatedAt.Equal(made) || data.Path == nil || data.Claim != nil {
			t.Errorf("volume.data is %+v", data)
		}
		if work.Used == nil || work.Used.Bytes != 5 || work.ID != e.current("sandbox.a").Claim["work"] || *work.Sandbox != "sandbox.a" || *work.Claim != "work" || !work.CreatedAt.Equal(made) || len(work.Users) != 1 {
			t.Errorf("the claim is %+v", work)
		}
		if len(idle.Mounts)+len(idle.Users) != 0 || idle.PreventDestroy || idle.Used.Files != 0 {
			t.Errorf("volume.idle is %+v", idle)
		}
		if len(other.Users) != 0 || len(other.Mounts) != 1 || !other.Mounts[0].ReadOnly {
			t.Errorf("the claim of the suspended one is %+v", other)
		}
		l.act(e, "pause", "a")
		if u := l.volumes(e)["volume.data"].Users; len(u) != 1 || u[0].Phase != plan.Paused {
			t.Errorf("frozen, it is in use by %+v", u)
		}

		// What lies beside the record: gone, and given up.
		l.world.DropVolume(idle.ID)
		if v := l.volumes(e)["volume.idle"]; v.Path != nil || v.Used != nil {
			t.Errorf("gone, it is %+v", v)
		}
		l.apply(e, plan.Options{})
		l.rm(e, "sandbox.a")
		if u := l.volumes(e)["volume.data"].Users; len(u) != 1 || u[0].Standing != "released" || u[0].Sandbox != "sandbox.a" {
			t.Errorf("given up, it is in use by %+v", u)
		}
		l.discard(e, *a.InstanceID)
		l.endShared(e)
	})
}

func TestVolumeByName(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": sharedVolumes})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		for word, want := range map[string]string{
			"data": "volume.data", "volume.data": "volume.data",
			`sandbox.a volume "work"`: `sandbox.a volume "work"`, `b volume "work"`: `sandbox.b volume "work"`,
		} {
			d, err := e.Volume(t.Context(), word)
			if err != nil || d.Volume.Address != want || d.Volume.Used == nil {
				t.Errorf("%s: %+v, %v", word, d, err)
			}
			if err == nil && (len(d.Events) > 0) != (d.Volume.Claim == nil) {
				t.Errorf("%s: its events are %+v", word, d.Events)
			}
		}
		_, err := e.Volume(t.Context(), "work")
		l.refused(err, Invalid, `"work" is ambiguous: sandbox.a volume "work", sandbox.b volume "work"`)
		_, err = e.Volume(t.Context(), "sandbox.a")
		l.refused(err, NotFound, "volume: not found: sandbox.a")
		_, err = e.Image(t.Context(), "data")
		l.refused(err, NotFound, "image: not found: data")
		l.apply(e, plan.Options{Destroy: true, Targets: []string{"sandbox.b"}})
		if d, err := e.Volume(t.Context(), "work"); err != nil || *d.Volume.Sandbox != "sandbox.a" {
			t.Errorf("the only one left: %+v, %v", d, err)
		}
		l.endShared(e)
	})
}

// endShared ends a lab with the sharedVolumes, of which one is protected.
func (l *lab) endShared(e *Engine) {
	l.t.Helper()
	l.main(strings.Replace(sharedVolumes, "  lifecycle { prevent_destroy = true }\n", "", 1))
	l.apply(e, plan.Options{})
	l.end(e)
}

// Counting has a bound, and is given up with the one who asked.
func TestCountingVolumesIsBounded(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": sharedVolumes})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		l.world.Delay(sim.OpVolumeUsage, time.Hour)
		began := time.Now()
		for address, v := range l.volumes(e) {
			if v.Used == nil || v.Used.Complete || v.Path == nil {
				t.Errorf("%s is %+v", address, v)
			}
		}
		if took := time.Since(began); took > usageOfAll {
			t.Errorf("it took %s", took)
		}
		d, err := e.Volume(t.Context(), "data")
		if err != nil || d.Volume.Used == nil || d.Volume.Used.Complete || time.Since(began) > usageOfAll+usageOfOne {
			t.Errorf("one alone: %+v, %v", d, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		time.AfterFunc(time.Second, cancel)
		began = time.Now()
		_, err = e.Volumes(ctx)
		l.refused(err, Interrupted, "counting what volumes take")
		if took := time.Since(began); took != time.Second {
			t.Errorf("given up, it took %s", took)
		}
		// What cannot be counted is no reason to tell nothing.
		l.world.Delay(sim.OpVolumeUsage, 0)
		l.world.Fail(sim.OpVolumeUsage, d.Volume.ID, errors.New("the disk fails"), sim.Before, sim.Always)
		all := l.volumes(e)
		if v := all["volume.data"]; v.Used != nil || v.Path == nil || all["volume.idle"].Used == nil {
			t.Errorf("one that fails: %+v", all)
		}
		l.world.ClearFaults()
		l.endShared(e)
	})
}

func TestImages(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": sharedVolumes})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		res, err := e.Images(t.Context())
		if err != nil || len(res.Images) != 2 {
			t.Fatalf("%+v, %v", res, err)
		}
		base, tree := res.Images[0], res.Images[1]
		if base.Address != "image.base" || base.Source != "host" || *base.Digest != "host" || *base.Path != "/" || base.Hidden == nil || len(base.Hidden.Absent) == 0 || len(base.Users) != 2 {
			t.Errorf("image.base is %+v", base)
		}
		if u := base.Users[0]; u.Sandbox != "sandbox.a" || u.Phase != plan.Running || *u.InstanceID != l.id(e, "sandbox.a") || *u.Digest != "host" {
			t.Errorf("its first user is %+v", u)
		}
		if tree.Source != "dir:/srv/tree" || *tree.Digest != "dir:/srv/tree" || *tree.Path != "/srv/tree" || tree.Hidden != nil || len(tree.Users) != 0 {
			t.Errorf("image.tree is %+v", tree)
		}
		if d, err := e.Image(t.Context(), "tree"); err != nil || !reflect.DeepEqual(d.Image, tree) {
			t.Errorf("one alone: %+v, %v", d, err)
		}
		l.endShared(e)
	})
}

// Through the agent's socket the same is said.
func TestVolumesAndImagesThroughTheSocket(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": sharedVolumes})
	c, e, _, stop := l.serve()
	ctx := context.Background()
	if _, err := c.Apply(ctx, l.request(plan.Options{}), nil, nil); err != nil {
		t.Fatal(err)
	}
	for what, ask := range map[string]func(Service) (any, error){
		"volumes": func(s Service) (any, error) { return s.Volumes(ctx) },
		"volume":  func(s Service) (any, error) { return s.Volume(ctx, "data") },
		"images":  func(s Service) (any, error) { return s.Images(ctx) },
		"image":   func(s Service) (any, error) { return s.Image(ctx, "tree") },
	} {
		direct, err := ask(e)
		through, err2 := ask(c)
		if one, two := asJSON(t, direct), asJSON(t, through); err != nil || err2 != nil || one != two {
			t.Errorf("%s: %s, %v; through the socket %s, %v", what, one, err, two, err2)
		}
	}
	_, err := c.Volume(ctx, "none")
	l.refused(err, NotFound, "volume: not found: none")
	stop()
	l.endShared(e)
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
