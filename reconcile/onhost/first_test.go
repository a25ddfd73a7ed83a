package onhost

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// answering is a server that says its version to whoever connects, ready once its
// health probe finds /run/ready, which it makes after a while.
func answering(version, extra string) string {
	const server = `use IO::Socket::INET; my $s = IO::Socket::INET->new(Listen => 20, LocalPort => 7, ReuseAddr => 1) or die; ` +
		`select(undef, undef, undef, 1.5); open(my $f, ">", "/run/ready") or die; close $f; ` +
		`while (my $c = $s->accept) { print $c "$ARGV[0]\n"; close $c }`
	return fmt.Sprintf(`network "n" {}
sandbox "web" {
  image   = image.base
  command = ["perl", "-e", %q, %q]
  network { name = network.n }
  port "tcp" { container = 7 }
  health {
    command  = ["test", "-e", "/run/ready"]
    interval = "200ms"
  }
  lifecycle { create_before_destroy = true }
  %s
}
sandbox "user" {
  image   = image.base
  command = ["sleep", "1000"]
  env     = { PEER = sandbox.web.address }
  network { name = network.n }
}
`, server, version, extra)
}

// ask connects as a client from outside and reads the answer.
func ask(port int) (string, error) {
	c, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), 5*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return strings.TrimSpace(line), nil
}

// TestReplacedUnderAClient: with create_before_destroy a client is served by the old
// process until the new one is ready, and the old port goes only after that.
func TestReplacedUnderAClient(t *testing.T) {
	for name, extra := range map[string]string{"forwarded": "", "relayed": "lifetime { idle_timeout = \"1h\" }"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.apply(answering("one", extra))
			old := w.until("web", "ready", func(v reconcile.SandboxView) bool { return condition(v, "Ready").Status == "True" })
			port := old.Ports["tcp"].Host
			if got, err := ask(port); got != "one" {
				t.Fatalf("it says %q, %v", got, err)
			}

			// Connect again and again while it is replaced. A refusal is all right only
			// once the record names another instance.
			var wg sync.WaitGroup
			stop, served := make(chan struct{}), 0
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					got, err := ask(port)
					if err == nil && got == "one" {
						served++
						continue
					}
					res, looked := w.List(w.ctx, "web")
					if looked == nil && *res.Sandboxes[0].InstanceID == *old.InstanceID {
						t.Errorf("the old one says %q, %v while it is the sandbox's instance", got, err)
					}
					return
				}
			})
			res := w.apply(answering("two", extra+"\n  security { user_namespace = false }"))
			close(stop)
			wg.Wait()
			if res.Applied.Replace != 1 || served == 0 {
				t.Errorf("applied %+v, served %d times meanwhile", res.Applied, served)
			}
			now := w.view("web")
			if *now.InstanceID == *old.InstanceID || now.Ports["tcp"].Host == port || *now.AddressV4 == *old.AddressV4 || !dead(*old.PID) {
				t.Errorf("it is %+v, was %+v", now, old)
			}
			if got, err := ask(now.Ports["tcp"].Host); got != "two" {
				t.Errorf("the new one says %q, %v", got, err)
			}
			w.says("user", `printf %s "$PEER"`, *now.AddressV4)
			w.until("web", "ready", func(v reconcile.SandboxView) bool { return condition(v, "Ready").Status == "True" })
		})
	}
}

// TestReplacementNeverReadyOnTheHost: what does not become ready leaves nothing, and
// the old process goes on serving.
func TestReplacementNeverReadyOnTheHost(t *testing.T) {
	w := newWorld(t)
	w.apply(answering("one", ""))
	old := w.view("web")
	never := strings.Replace(answering("two", "lifetime { start_timeout = \"3s\" }\n  security { user_namespace = false }"), "/run/ready\"]", "/run/never\"]", 1)
	res, err := w.tryApply(never)
	if err == nil || len(res.Failures) == 0 || !strings.Contains(res.Failures[0].Error, "not ready within 3s") {
		t.Fatalf("apply: %v, %+v", err, res.Failures)
	}
	now := w.phase("web", plan.Running)
	if *now.InstanceID != *old.InstanceID || *now.PID != *old.PID || dead(*old.PID) {
		t.Errorf("it is %+v, was %+v", now, old)
	}
	if got, err := ask(old.Ports["tcp"].Host); got != "one" {
		t.Errorf("it says %q, %v", got, err)
	}
	gone, err := w.GC(w.ctx, reconcile.GCRequest{DryRun: true})
	if err != nil || len(gone.Orphans) > 0 {
		t.Errorf("left behind: %+v, %v", gone, err)
	}
}
