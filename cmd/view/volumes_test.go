package view

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

func someVolumes() *reconcile.VolumesResult {
	mount := func(sandbox, path string, ro bool) reconcile.VolumeMount {
		return reconcile.VolumeMount{Sandbox: sandbox, Path: path, ReadOnly: ro}
	}
	return &reconcile.VolumesResult{FormatVersion: "1", Volumes: []reconcile.VolumeView{
		{
			Address: "volume.models", ID: "0123456789ab", Path: ptr("/var/lib/pinfold/volumes/0123456789ab"), Used: &reconcile.VolumeUsed{Bytes: 5 << 30, Files: 12},
			Mounts:         []reconcile.VolumeMount{mount(`sandbox.w["a"]`, "/models", true), mount(`sandbox.w["b"]`, "/models", true), mount("sandbox.x", "/m", false), mount("sandbox.y", "/m", false)},
			Users:          []reconcile.VolumeUser{{Sandbox: "sandbox.x", InstanceID: "aaaaaaaaaaaa", Phase: plan.Running, PID: 4242, Path: "/m", Standing: "own"}, {Sandbox: `sandbox.w["a"]`, InstanceID: "bbbbbbbbbbbb", Phase: plan.Paused, PID: 4343, Path: "/models", ReadOnly: true, Standing: "released"}},
			PreventDestroy: true, CreatedAt: ptr(now.Add(-50 * time.Hour)),
		},
		{Address: "volume.s[10]", ID: "10", Path: ptr("/v/10"), Used: &reconcile.VolumeUsed{Complete: true}},
		{Address: "volume.s[9]", ID: "9"},
		{Address: "volume.bad", ID: "8", Path: ptr("/v/8")},
		{
			Address: `sandbox.db volume "work"`, Sandbox: ptr("sandbox.db"), Claim: ptr("work"), ID: "ba9876543210", Path: ptr("/var/lib/pinfold/volumes/ba9876543210"),
			Used: &reconcile.VolumeUsed{Bytes: 12300, Files: 1, Complete: true}, Mounts: []reconcile.VolumeMount{mount("sandbox.db", "/work", true)}, CreatedAt: ptr(now.Add(-90 * time.Minute)),
		},
	}}
}

func someImages() *reconcile.ImagesResult {
	return &reconcile.ImagesResult{FormatVersion: "1", Images: []reconcile.ImageView{
		{
			Address: "image.base", Source: "host", Digest: ptr("host"), Path: ptr("/"), Hidden: &reconcile.ImageHidden{Absent: []string{"/etc/shadow", "/var/lib/pinfold"}, Empty: []string{"/root"}},
			Users: []reconcile.ImageUser{{Sandbox: "sandbox.db", InstanceID: ptr("aaaaaaaaaaaa"), Phase: plan.Running, Digest: ptr("host")}, {Sandbox: "sandbox.new", Phase: plan.Pending}},
		},
		{
			Address: "image.tree", Source: "dir:/srv/tree", Digest: ptr("dir:/srv/tree-2"), Path: ptr("/srv/tree-2"), PreventDestroy: true,
			Users: []reconcile.ImageUser{{Sandbox: "sandbox.t", InstanceID: ptr("bbbbbbbbbbbb"), Phase: plan.Stopped, Digest: ptr("dir:/srv/tree-1")}},
		},
	}}
}

func TestVolumesAndImages(t *testing.T) {
	volumes, images := someVolumes(), someImages()
	what := func(i int) *reconcile.VolumeDescription {
		return &reconcile.VolumeDescription{Volume: volumes.Volumes[i], DependsOn: []string{"sandbox.first"}, Events: []reconcile.Event{{Seq: 4, At: now.Add(-50 * time.Hour), Address: "volume.models", Type: "create", Reason: "not created yet", By: "apply", Instance: "0123456789ab"}}}
	}
	for name, show := range map[string]func(*Screen){
		"volumes":     func(s *Screen) { s.Volumes(volumes, now) },
		"volume":      func(s *Screen) { s.Volume(what(0), now) },
		"volume_gone": func(s *Screen) { s.Volume(&reconcile.VolumeDescription{Volume: volumes.Volumes[2]}, now) },
		"claim":       func(s *Screen) { s.Volume(&reconcile.VolumeDescription{Volume: volumes.Volumes[4]}, now) },
		"images":      func(s *Screen) { s.Images(images) },
		"image":       func(s *Screen) { s.Image(&reconcile.ImageDescription{Image: images.Images[0]}) },
		"image_other": func(s *Screen) { s.Image(&reconcile.ImageDescription{Image: images.Images[1]}) },
	} {
		golden(t, name+".txt", shown(false, 0, show))
		narrow := shown(false, 40, show)
		golden(t, name+"_40.txt", narrow)
		for line := range strings.Lines(string(narrow)) {
			// A path or id is one word.
			if n := columns(strings.TrimSuffix(line, "\n")); n > 40 && len(strings.Fields(line)) > 1 {
				t.Errorf("%s: %d columns: %q", name, n, line)
			}
		}
	}
	for want, show := range map[string]func(*Screen){
		"No volumes.\n": func(s *Screen) { s.Volumes(&reconcile.VolumesResult{}, now) },
		"No images.\n":  func(s *Screen) { s.Images(&reconcile.ImagesResult{}) },
	} {
		if got := string(shown(false, 0, show)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	var out bytes.Buffer
	if err := VolumeJSON(&out, what(0)); err != nil {
		t.Fatal(err)
	}
	golden(t, "volume-show.json", out.Bytes())
	out.Reset()
	if err := ImagesJSON(&out, images); err != nil {
		t.Fatal(err)
	}
	golden(t, "image-list.json", out.Bytes())
}

func TestAmount(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0B", 1023: "1023B", 1024: "1KiB", 1536: "1.5KiB", 10189: "10KiB", 12288: "12KiB", 1<<20 - 1: "1MiB", 1 << 20: "1MiB", 1023 << 10: "1023KiB", 5 << 30: "5GiB", 1 << 41: "2TiB", 1 << 52: "4096TiB",
	} {
		if got := amount(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}
