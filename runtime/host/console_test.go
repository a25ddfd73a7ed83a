package host

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/opencontainers/runc/libcontainer/utils"

	"pinfold/runtime"
)

// A terminal that does not come holds nobody up: neither when nobody sends it, nor
// when its sender dies, nor when the caller has had enough.
func TestConsoleThatNeverComes(t *testing.T) {
	ours, theirs, err := utils.NewSockPair("console")
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	ctx := context.Background()

	h := &Host{enterBound: 20 * time.Millisecond}
	if _, err := h.receiveConsole(ctx, ours); !errors.Is(err, runtime.ErrBusy) {
		t.Errorf("nobody sends it: %v", err)
	}
	h.enterBound = time.Hour
	why := errors.New("enough")
	cancelled, cancel := context.WithCancelCause(ctx)
	time.AfterFunc(10*time.Millisecond, func() { cancel(why) })
	if _, err := h.receiveConsole(cancelled, ours); !errors.Is(err, why) {
		t.Errorf("the caller has had enough: %v", err)
	}
	theirs.Close()
	if _, err := h.receiveConsole(ctx, ours); err == nil {
		t.Error("a sender that is gone has sent a terminal")
	}
}
