package plan

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pinfold/config"
)

// What nobody wrote is told apart from what the files or a policy say, though the
// values be the same.
func TestDefaults(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.hcl"), []byte(`
image "base" { source = "host" }
network "n" {}
volume "v" {}
policy "p" {
  stop_grace = "10s"
  resources { pids = 5 }
}
sandbox "a" {
  image           = image.base
  command         = ["sleep", "1d"]
  env             = { A = "1", "B.C" = "2" }
  labels          = { "a/b" = "c" }
  shutdown_policy = "retain"
  policies        = [policy.p]
  network { name = network.n }
  port "http" {
    container = 80
    protocol  = "tcp"
  }
  volume "work" { path = "/work" }
  mount {
    volume = volume.v
    path   = "/v"
  }
  file "/etc/$${x}.toml" { content = "" }
  security { user_namespace = true }
}
`), 0o644); err != nil {
		t.Fatal(err)
	}
	src, diags := config.Load(dir, config.Inputs{})
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	d, diags := src.Evaluate(config.DefaultSettings(), nil)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	got := map[string][]string{}
	in := newWorld().Input
	in.Desired, in.Records.Images = d, nil
	for _, c := range Make(in).Changes {
		got[c.Address] = c.Defaults
	}
	want := map[string][]string{
		"image.base": nil,
		"network.n":  {"internet"},
		"volume.v":   nil,
		"sandbox.a": {
			`file["/etc/$${x}.toml"].mode`, "lifetime.clock", "lifetime.idle_action", "lifetime.on_lost", "lifetime.renew_min_interval", "lifetime.start_timeout", "operating_mode",
			"port.http.address", "port.http.host", "restart.backoff_max", "restart.backoff_min", "restart.mode", "restart.window", "stop_signal", "volume.work.on_destroy",
		},
	}
	for a, paths := range want {
		if !slices.Equal(got[a], paths) {
			t.Errorf("%s: %q, want %q", a, got[a], paths)
		}
	}
}
