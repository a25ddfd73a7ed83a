package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/runtime/sim"
	"pinfold/state"
)

const planConfig = `
image "base" { source = "host" }
network "n" { cidr = "10.64.0.0/16" }
policy "p" {
  resources {
    cpu    = 0.5
    memory = "256MiB"
    pids   = 128
  }
}
sandbox "s" {
  count    = %d
  image    = image.base
  command  = ["sleep", "inf"]
  env      = { N = "${count.index}", GW = network.n.gateway }
  labels   = { team = "bench" }
  policies = [policy.p]
  network { name = network.n }
  lifetime { ttl = "30d" }
}
`

// The same through modules: a tenth as many instances of one, each of ten sandboxes.
const moduleConfig = `
image "base" { source = "host" }
network "n" { cidr = "10.64.0.0/16" }
policy "p" {
  resources {
    cpu    = 0.5
    memory = "256MiB"
    pids   = 128
  }
}
module "m" {
  source   = "./m"
  for_each = { for i in range(%d) : "team${i}" => i }
  image    = image.base
  network  = network.n
  policies = [policy.p]
  gateway  = network.n.gateway
  team     = each.key
}
`

const moduleFile = `
variable "image" {}
variable "network" {}
variable "policies" {}
variable "gateway" { type = string }
variable "team" { type = string }
sandbox "s" {
  count    = 10
  image    = var.image
  command  = ["sleep", "inf"]
  env      = { N = "${count.index}", GW = var.gateway }
  labels   = { team = var.team }
  policies = var.policies
  network { name = var.network }
  lifetime { ttl = "30d" }
}
`

// shape is how many sandboxes are written.
type shape struct {
	name  string
	files func(n int) map[string]string
}

var shapes = []shape{
	{"", func(n int) map[string]string { return map[string]string{"main.hcl": fmt.Sprintf(planConfig, n)} }},
	{" in instances of a module", func(n int) map[string]string {
		return map[string]string{"main.hcl": fmt.Sprintf(moduleConfig, n/10), "m/main.hcl": moduleFile}
	}},
}

// benchPlan measures a plan with nothing to do over many sandboxes on the
// simulated host: loading files and state, evaluating, observing and planning.
func benchPlan(ctx context.Context) error {
	for _, shape := range shapes {
		var one, ten time.Duration
		for _, n := range []int{1000, 10000} {
			took, err := planOf(ctx, shape.files(n))
			if err != nil {
				return err
			}
			bar := "bar ≤ 100 ms"
			if n == 10000 {
				ten, bar = took, "bar ≤ 1 s"
			} else {
				one = took
			}
			row(fmt.Sprintf("plan, nothing to do, %d sandboxes%s (simulated host)", n, shape.name), ms(took), bar)
		}
		row("  growth from 1,000 to 10,000 sandboxes", fmt.Sprintf("× %.1f", float64(ten)/float64(one)), "linear is × 10")
	}
	return nil
}

func planOf(ctx context.Context, files map[string]string) (time.Duration, error) {
	dir, err := os.MkdirTemp("", "pinfold-bench-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	conf := filepath.Join(dir, "config")
	for name, text := range files {
		path := filepath.Join(conf, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return 0, err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return 0, err
		}
	}
	world := sim.New()
	open := func() (*reconcile.Engine, error) {
		store, err := state.Open(ctx, state.Options{Dir: filepath.Join(dir, "state"), Verb: "bench"})
		if err != nil {
			return nil, err
		}
		return reconcile.NewEngine(ctx, reconcile.EngineOptions{
			Store: store, Host: world.Open(store.Lineage()), Settings: config.DefaultSettings(),
		})
	}
	e, err := open()
	if err != nil {
		return 0, err
	}
	source, diags := config.Load(conf, config.Inputs{})
	if diags.HasErrors() {
		return 0, fmt.Errorf("%v", diags)
	}
	req := reconcile.PlanRequest{Source: source}
	if _, err := e.Apply(ctx, reconcile.ApplyRequest{PlanRequest: req, AutoApprove: true, Parallelism: 64}, nil, nil); err != nil {
		return 0, err
	}
	if err := e.Close(); err != nil {
		return 0, err
	}
	var all []time.Duration
	for range 7 {
		begun := time.Now()
		source, diags := config.Load(conf, config.Inputs{})
		if diags.HasErrors() {
			return 0, fmt.Errorf("%v", diags)
		}
		e, err := open()
		if err != nil {
			return 0, err
		}
		p, err := e.Plan(ctx, reconcile.PlanRequest{Source: source})
		if err != nil {
			return 0, err
		}
		all = append(all, time.Since(begun))
		if !p.Plan.Empty() {
			return 0, fmt.Errorf("there is something to do: %s", p.Plan)
		}
		if err := e.Close(); err != nil {
			return 0, err
		}
	}
	return quantile(all, 0.5), nil
}
