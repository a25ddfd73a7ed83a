package cli

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"pinfold/config"
	"pinfold/reconcile"
)

// need says what a command wants of the engine.
type need struct {
	verb     string // told to those who wait for the state
	does     string // "pinfold needs root to …"
	changes  bool   // false: it only looks, beside others that do
	lockWait time.Duration
}

// open reaches the engine: the agent's when one runs, else in this process.
func (r *run) open(ctx context.Context, n need) (reconcile.Service, error) {
	if err := r.privileged(n.does); err != nil {
		return nil, err
	}
	o, err := r.options(n)
	if err != nil {
		return nil, err
	}
	return r.Open(ctx, o)
}

// call opens the engine for one call of it.
func call[T any](ctx context.Context, r *run, n need, do func(reconcile.Service) (T, error)) (result T, err error) {
	service, err := r.open(ctx, n)
	if err != nil {
		return result, err
	}
	defer service.Close()
	return do(service)
}

func (r *run) options(n need) (reconcile.OpenOptions, error) {
	settings, err := r.settings()
	if err != nil {
		return reconcile.OpenOptions{}, err
	}
	log, err := r.logger(hclog.Off)
	if err != nil {
		return reconcile.OpenOptions{}, err
	}
	return reconcile.OpenOptions{
		StateDir: r.global.stateDir, RunDir: r.global.runDir, Settings: settings,
		LockWait: n.lockWait, Verb: n.verb, ReadOnly: !n.changes, Version: config.Version, Log: log,
		Waiting: func(text string) { r.err.Linef("%s\n", text) },
		Warn:    func(text string) { r.complain(config.Diagnostics{{Severity: "warning", Summary: text}}) },
	}, nil
}

// privileged checks that this user may do it: root, or someone the agent's
// socket lets in.
func (r *run) privileged(does string) error {
	if r.Euid == 0 {
		return nil
	}
	socket := filepath.Join(r.global.runDir, "agent.sock")
	if unix.Access(socket, unix.W_OK) == nil {
		return nil
	}
	why := "the agent's socket " + socket + " is not open to you"
	switch _, err := os.Stat(socket); {
	case os.IsNotExist(err):
		why = "no agent runs (there is no " + socket + ")"
	case err != nil:
		why = "no agent's socket is open to you at " + socket
	}
	return failure("pinfold needs root to "+does, "You are user %d, and %s. Run it with sudo, or ask for access to the agent's socket.", r.Euid, why)
}

func (r *run) settings() (config.Settings, error) {
	settings, diags := config.LoadSettings(r.global.hostConfig)
	if diags.HasErrors() {
		return settings, &diagnosed{all: diags}
	}
	return settings, nil
}

// source reads the configuration of the working directory. Warnings come with it.
func source(in config.Inputs) (*config.Source, config.Diagnostics, error) {
	src, diags := config.Load(".", in)
	if diags.HasErrors() {
		return nil, diags, &diagnosed{all: diags}
	}
	return src, diags, nil
}
