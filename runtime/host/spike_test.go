package host

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"pinfold/runtime"
)

func TestSpike(t *testing.T) {
	dir := t.TempDir()
	h, err := Open(Options{StateDir: dir + "/state", RunDir: dir + "/run", Lineage: "x-y", ShortID: "abcdef",
		Trace: func(p string, d time.Duration) { fmt.Println(p, d) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	img, err := h.PrepareImage(ctx, runtime.ImageSource{Kind: "host"})
	if err != nil {
		t.Fatal(err)
	}
	in := runtime.Instance{ID: "aaaaaaaaaaaa", Mark: runtime.Mark{UID: "u", Address: "sandbox.a"}, Image: img,
		Command: []string{"sh", "-c", "id; cat /proc/self/status | egrep 'Seccomp|NoNew|Cap'; cat /proc/self/mountinfo; ls -la / /dev /root; cat /etc/shadow; ip a; trap 'exit 3' TERM; while :; do sleep 0.1; done"},
		IDs:     runtime.IDRange{Base: 200000, Size: 65536}, Capabilities: []string{"CAP_CHOWN", "CAP_KILL"}, Seccomp: "default"}
	for i := 0; i < 3; i++ {
		p, err := h.Create(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(p)
		if err := h.Start(ctx, in.ID); err != nil {
			t.Error(err)
		}
		time.Sleep(300 * time.Millisecond)
		o, err := h.Observe(ctx)
		fmt.Printf("%+v %v\n", o, err)
		st := time.Now()
		out, err := h.Stop(ctx, in.ID, runtime.StopOptions{Grace: 5 * time.Second})
		fmt.Println(out, err, time.Since(st))
	}
	b, _ := os.ReadFile(dir + "/state/instances/aaaaaaaaaaaa/log")
	fmt.Println(string(b[:min(len(b), 6000)]))
	fmt.Println(h.Remove(ctx, in.ID), h.Close())
}
