package config

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	spec := Sandbox{
		Command: []string{"run", "--token", "s3cret-1"},
		Env:     map[string]string{"TOKEN": "s3cret-2", "odd key": "s3cret-3", "WHO": "you"},
		Files:   map[string]File{"/etc/a": {Content: "s3cret-4", Mode: "0600"}},
		Mounts:  []Mount{{Host: "/s3cret-5", Path: "/x"}},
		Labels:  map[string]string{"a": "s3cret-6"},
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	got := string(Redact("", raw, []string{"command[2]", "env.TOKEN", `env["odd key"]`, `file["/etc/a"].content`, "mount[0].host", "labels", "not.there"}))
	if strings.Contains(got, "s3cret") || !json.Valid([]byte(got)) {
		t.Errorf("it tells %s", got)
	}
	for _, want := range []string{`"command":["run","--token","(sensitive value)"]`, `"WHO":"you"`, `"labels":"(sensitive value)"`, `"mode":"0600"`, `"path":"/x"`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s lacks %s", got, want)
		}
	}
	if raw := Redact("", json.RawMessage(`{"a":1}`), nil); string(raw) != `{"a":1}` {
		t.Errorf("without anything sensitive it is %s", raw)
	}
	if raw := Redact("env.TOKEN", json.RawMessage(`"s3cret"`), []string{"env"}); string(raw) != `"(sensitive value)"` {
		t.Errorf("below what is sensitive it is %s", raw)
	}
	if Covered("environment", []string{"env"}) || !Covered("env[\"a\"]", []string{"env"}) {
		t.Error("a name that begins like another is not covered by it")
	}
}
