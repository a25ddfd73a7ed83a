package cli

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

func (e *engine) Volumes(context.Context) (*reconcile.VolumesResult, error) {
	return &reconcile.VolumesResult{FormatVersion: "1", Volumes: []reconcile.VolumeView{}}, e.err
}

func (e *engine) Volume(_ context.Context, name string) (*reconcile.VolumeDescription, error) {
	e.asked = append(e.asked, name)
	if strings.Contains(name, "none") {
		return nil, &reconcile.Error{Kind: reconcile.NotFound, Message: "volume: not found: " + name}
	}
	return &reconcile.VolumeDescription{Volume: reconcile.VolumeView{Address: name}}, e.err
}

func (e *engine) Images(context.Context) (*reconcile.ImagesResult, error) {
	return &reconcile.ImagesResult{FormatVersion: "1", Images: []reconcile.ImageView{}}, e.err
}

func (e *engine) Image(_ context.Context, name string) (*reconcile.ImageDescription, error) {
	e.asked = append(e.asked, name)
	if strings.Contains(name, "none") {
		return nil, &reconcile.Error{Kind: reconcile.NotFound, Message: "image: not found: " + name}
	}
	return &reconcile.ImageDescription{Image: reconcile.ImageView{Address: name}}, e.err
}

// A name may be written as the list has it, also without the quotes that the shell
// takes away, or shortly.
func TestVolumeNames(t *testing.T) {
	for line, want := range map[string]string{
		"volume show models":                           "models",
		"volume show volume.models":                    "volume.models",
		"volume show volume.m[a]":                      `volume.m["a"]`,
		"volume show module.x.volume.m":                "module.x.volume.m",
		"volume show sandbox.db volume work":           `sandbox.db volume "work"`,
		`volume show sandbox.db volume "work"`:         `sandbox.db volume "work"`,
		"volume show db volume work":                   `db volume "work"`,
		"volume show sandbox.w[a] volume work":         `sandbox.w["a"] volume "work"`,
		"image show base":                              "base",
		"image show image.base":                        "image.base",
		"volume show -lock-timeout 0 sandbox.x volume": "",
		"volume show sandbox.db":                       "",
		"volume show image.base":                       "",
		"volume show a b":                              "",
		"volume show image.base volume work":           "",
		"image show volume.x":                          "",
		"image show 7up":                               "",
		"image show a b":                               "",
		"image show":                                   "",
		"volume list x":                                "",
	} {
		e := &engine{}
		r := invoke(t, e, strings.Fields(line)...)
		switch {
		case want == "" && (r.code != 1 || len(e.asked) > 0 || r.err == ""):
			t.Errorf("%s: exit %d, asked for %q\n%s", line, r.code, e.asked, r.err)
		case want != "" && (r.code != 0 || !slices.Equal(e.asked, []string{want})):
			t.Errorf("%s: exit %d, asked for %q, want %q\n%s", line, r.code, e.asked, want, r.err)
		}
		if len(e.asked) > 0 && (!e.opened.ReadOnly || e.closed != 1) {
			t.Errorf("%s: opened %+v, closed %d times", line, e.opened, e.closed)
		}
	}
}

func volumesRecorded() *reconcile.RecordsResult {
	return &reconcile.RecordsResult{Records: plan.Records{
		Volumes:   map[string]*plan.Volume{"volume.models": {}, "volume.cache": {}},
		Images:    map[string]*plan.Image{"image.base": {}},
		Sandboxes: map[string]*plan.Sandbox{"sandbox.db": {Claim: map[string]string{"work": "0123456789ab", "nine": "ba9876543210"}}},
	}}
}

func TestVolumeThatIsNotThere(t *testing.T) {
	for line, want := range map[string]string{
		"volume show nones":                  "volume: not found: nones",
		"volume show sandbox.db volume none": `did you mean sandbox.db volume "nine"?`,
		"image show none":                    "pinfold image list",
	} {
		e := &engine{recorded: volumesRecorded()}
		if r := invoke(t, e, strings.Fields(line)...); r.code != 1 || !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(r.err, "│", "")), " "), want) {
			t.Errorf("%s: exit %d, not with %q\n%s", line, r.code, want, r.err)
		}
	}
	if r := invoke(t, &engine{}, "volume", "show", "none"); r.code != 1 || !strings.Contains(r.err, "There is none here at all") {
		t.Errorf("without any: exit %d\n%s", r.code, r.err)
	}
}

func TestVolumesAreCompleted(t *testing.T) {
	for line, want := range map[string][]string{
		"volume ":              {"list", "show"},
		"image s":              {"show"},
		"volume show ":         {`sandbox.db volume "nine"`, `sandbox.db volume "work"`, "volume.cache", "volume.models"},
		"volume show m":        {"models"},
		"volume show volume.c": {"volume.cache"},
		"volume show cache ":   nil,
		"image show ":          {"image.base"},
		"image show b":         {"base"},
		"volume list ":         nil,
		"volume list -":        {"-lock-timeout", "-json", "-help", "-h", "-no-color", "-state-dir", "-run-dir", "-host-config"},
	} {
		words := strings.Split(line, " ")
		r := invoke(t, &engine{recorded: volumesRecorded()}, append([]string{"__complete", "--"}, words...)...)
		var got []string
		for l := range strings.Lines(r.out) {
			word, _, _ := strings.Cut(l, "\t")
			got = append(got, word)
		}
		slices.Sort(got)
		slices.Sort(want)
		if r.code != 0 || !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
