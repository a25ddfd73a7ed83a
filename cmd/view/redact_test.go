package view

import (
	"encoding/json"
	"strings"
	"testing"

	"pinfold/config"
)

func TestRedacted(t *testing.T) {
	spec := config.Sandbox{
		Command: []string{"run", "--token", "s3cret-1"},
		Env:     map[string]string{"TOKEN": "s3cret-2", "odd key": "s3cret-3", "WHO": "you"},
		Files:   map[string]config.File{"/etc/a": {Content: "s3cret-4", Mode: "0600"}},
		Mounts:  []config.Mount{{Host: "/s3cret-5", Path: "/x"}},
		Labels:  map[string]string{"a": "s3cret-6"},
	}
	got := string(redactedSpec(spec, []string{"command[2]", "env.TOKEN", `env["odd key"]`, `file["/etc/a"].content`, "mount[0].host", "labels", "not.there"}))
	if strings.Contains(got, "s3cret") || !json.Valid([]byte(got)) {
		t.Errorf("it tells %s", got)
	}
	for _, want := range []string{`"command":["run","--token","(sensitive value)"]`, `"WHO":"you"`, `"labels":"(sensitive value)"`, `"mode":"0600"`, `"path":"/x"`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s lacks %s", got, want)
		}
	}
	if raw := redacted(json.RawMessage(`{"a":1}`), nil); string(raw) != `{"a":1}` {
		t.Errorf("without anything sensitive it is %s", raw)
	}
}
