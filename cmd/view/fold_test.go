package view

import "testing"

func TestMember(t *testing.T) {
	for path, want := range map[string][2]string{
		"image":                          {"", "image"},
		"resources.cpu":                  {"resources", "cpu"},
		"port.http":                      {"", "port.http"},
		"port.http.host":                 {"port.http", "host"},
		`file["/etc/a.b[1]"].mode`:       {`file["/etc/a.b[1]"]`, "mode"},
		`env["odd key"]`:                 {"env", `"odd key"`},
		"env.WHO":                        {"env", "WHO"},
		"a.b.c":                          {"", "a.b.c"},
		"mount[0].path":                  {"", "mount[0].path"},
		`volume["x y"]`:                  {"", `volume["x y"]`},
		"resources":                      {"", "resources"},
		`labels["with \"] inside"].more`: {"", `labels["with \"] inside"].more`},
	} {
		if group, name := member(path); group != want[0] || name != want[1] {
			t.Errorf("%s: %q and %q, want %q", path, group, name, want)
		}
	}
}

func TestFolded(t *testing.T) {
	long := "a text that is so long that three of them would never fit"
	for _, c := range []struct {
		leaves []leaf
		want   []attribute
	}{
		{
			[]leaf{{"env.A", "1"}, {"env.B", unknown{}}, {"image", "image.base"}, {"network.name", "network.n"}},
			[]attribute{{"+", "env", `{ A = "1", B = (known after apply) }`, ""}, {"+", "image", `"image.base"`, ""}, {"+", "network.name", `"network.n"`, ""}},
		},
		{
			[]leaf{{"env.A", long}, {"env.B", long}},
			[]attribute{{"+", "env.A", quote(long), ""}, {"+", "env.B", quote(long), ""}},
		},
		{
			[]leaf{{"file.x.content", "a\nb\n"}, {"file.x.mode", "0600"}},
			[]attribute{{"+", "file.x.content", "<<EOT\n    a\n    b\nEOT", ""}, {"+", "file.x.mode", `"0600"`, ""}},
		},
		{
			[]leaf{{"port.a.container", "1"}, {"port.a.host", "2"}, {"port.b.container", "3"}, {"port.b.host", "4"}},
			[]attribute{{"+", "port.a", `{ container = "1", host = "2" }`, ""}, {"+", "port.b", `{ container = "3", host = "4" }`, ""}},
		},
	} {
		got := folded(c.leaves, 0)
		if len(got) != len(c.want) {
			t.Errorf("%v: %q", c.leaves, got)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%q, want %q", got[i], c.want[i])
			}
		}
	}
}
