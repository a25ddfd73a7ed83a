package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// interrupts turns the first Ctrl-C, SIGTERM or SIGHUP into a cancelled
// context, so that running steps finish, and the second into an immediate exit.
// A command may take the signals over, as exec does to pass them on.
type interrupts struct {
	app    *App
	ctx    context.Context
	cancel context.CancelCauseFunc
	ch     chan os.Signal
	done   chan struct{}

	mu      sync.Mutex
	forward func(os.Signal)
	cleanup []func() // before an immediate exit: the terminal's mode
	words   string   // said at the first one
}

func watchInterrupts(parent context.Context, app *App) (context.Context, *interrupts) {
	ctx, cancel := context.WithCancelCause(parent)
	i := &interrupts{app: app, ctx: ctx, cancel: cancel, ch: make(chan os.Signal, 4), done: make(chan struct{})}
	signal.Notify(i.ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go i.watch()
	return ctx, i
}

func (i *interrupts) watch() {
	count := 0
	for {
		select {
		case <-i.done:
			return
		case s := <-i.ch:
			i.mu.Lock()
			forward, words, cleanup := i.forward, i.words, i.cleanup
			i.mu.Unlock()
			if forward != nil {
				forward(s)
				continue
			}
			count++
			if count > 1 {
				for _, f := range cleanup {
					f()
				}
				i.endLine()
				i.app.Exit(exitInterrupted)
				return
			}
			if words != "" {
				fmt.Fprintf(i.app.Err, "\n%s\n", words)
			} else {
				i.endLine()
			}
			i.cancel(errInterrupted)
		}
	}
}

// endLine leaves what a terminal's line may hold, a question, progress or the ^C
// itself, so that what follows, be it the shell's prompt, begins its own.
func (i *interrupts) endLine() {
	if isTerminal(i.app.Err) {
		fmt.Fprintln(i.app.Err)
	}
}

// takeOver sends further signals to f, those named as well as the usual three.
func (i *interrupts) takeOver(f func(os.Signal), also ...os.Signal) {
	i.mu.Lock()
	i.forward = f
	i.mu.Unlock()
	signal.Notify(i.ch, also...)
}

// say sets what the first interruption is answered with, in lines that fit.
func (i *interrupts) say(words string) {
	i.mu.Lock()
	i.words = words
	i.mu.Unlock()
}

// onExit runs f before an immediate exit.
func (i *interrupts) onExit(f func()) {
	i.mu.Lock()
	i.cleanup = append(i.cleanup, f)
	i.mu.Unlock()
}

func (i *interrupts) stop() {
	signal.Stop(i.ch)
	close(i.done)
	i.cancel(nil)
}
