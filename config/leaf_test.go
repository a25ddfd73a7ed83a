package config

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "1.5h": 90 * time.Minute,
		"1d": day, "2w": 2 * week, "1w2d3h": week + 2*day + 3*time.Hour, "1.5d": 36 * time.Hour,
		"-5m": -5 * time.Minute, "1ms": time.Millisecond, "1µs": time.Microsecond, "1us": time.Microsecond,
		".5s": 500 * time.Millisecond, "1.s": time.Second, " 8h ": 8 * time.Hour, "0.0000000001s": 0,
		"9223372036854775807ns": math.MaxInt64,
	} {
		got, err := ParseDuration(text)
		if err != nil || time.Duration(got) != want {
			t.Errorf("%q: %v, %v; want %v", text, time.Duration(got), err, want)
		}
	}
	for _, text := range []string{"", "-", "5", "h", "1x", "1h5", "1y", "1 h", "1..5h", ".h", "9223372036854775808ns", "20000w", "1e3s", "999999999999999999999h", "never"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("%q: %v, want an error", text, got)
		} else if !strings.Contains(err.Error(), "not a duration") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestDurationString(t *testing.T) {
	for text, want := range map[string]string{
		"36h": "1d12h", "168h": "1w", "90s": "1m30s", "1500ms": "1.5s", "1.5ms": "1.5ms", "0s": "0s", "-36h": "-1d12h", "24h1ms": "1d1ms",
	} {
		d, err := ParseDuration(text)
		if err != nil || d.String() != want {
			t.Errorf("%q: %q, %v; want %q", text, d.String(), err, want)
		}
	}
}

func TestDurationTextReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := Duration(rapid.Int64Range(math.MinInt64+1, math.MaxInt64).Draw(t, "d"))
		text, err := d.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var again Duration
		if err := again.UnmarshalText(text); err != nil || again != d {
			t.Fatalf("%d is written %q and read as %d, %v", d, text, again, err)
		}
	})
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "512MiB": 512 << 20, "2GB": 2e9, "1.5GiB": 3 << 29, "10 KiB": 10 << 10, "1B": 1, "7PiB": 7 << 50,
		"9223372036854775807": math.MaxInt64,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "MiB", "512M", "1.5", "0.3KiB", "9223372036854775808", "1e3", "1/2", "0x10", "ten", "9PiBB", "1.2.3MiB"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q: %d, want an error", text, got)
		}
	}
	if _, err := ParseSize("512M"); !strings.Contains(err.Error(), "512MiB") {
		t.Errorf("the error for 512M does not say what to write: %v", err)
	}
}

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]Address{
		"sandbox.py":                                 {Type: "sandbox", Name: "py"},
		"sandbox.w[\"a\"]":                           {Type: "sandbox", Name: "w", Key: "a"},
		"sandbox.w[0]":                               {Type: "sandbox", Name: "w", Key: 0},
		"network.a-b_c":                              {Type: "network", Name: "a-b_c"},
		`sandbox.w["a\"b"]`:                          {Type: "sandbox", Name: "w", Key: `a"b`},
		`sandbox.w["$${x} %%{"]`:                     {Type: "sandbox", Name: "w", Key: "${x} %{"},
		`sandbox.w["$5 100%"]`:                       {Type: "sandbox", Name: "w", Key: "$5 100%"},
		`policy.p`:                                   {Type: "policy", Name: "p"},
		`module.ci.volume.v`:                         {Module: "module.ci", Type: "volume", Name: "v"},
		`module.module.policy.p`:                     {Module: "module.module", Type: "policy", Name: "p"},
		`module.ci["a"].sandbox.runner["x"]`:         {Module: `module.ci["a"]`, Type: "sandbox", Name: "runner", Key: "x"},
		`module.ci["].[\""].module.db[3].image.i[0]`: {Module: `module.ci["].[\""].module.db[3]`, Type: "image", Name: "i", Key: 0},
	} {
		got, err := ParseAddress(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
			continue
		}
		if got.String() != text {
			t.Errorf("%q is written back as %q", text, got.String())
		}
	}
	for _, text := range []string{
		"", "py", "sandbox", "sandbox.", "sandbox.py.address", "sandbox.py[", "sandbox.py[\"a\"].x", "sandbx.py", "sandbox.w[-1]",
		"sandbox.w[1.5]", "sandbox.w[x]", "sandbox.w[\"${x}\"]", "sandbox[0]", "sandbox.w[0][1]", "module.ci", "module.ci[0]", "module.sandbox.py",
		"module.ci[0][1].sandbox.py", "sandbox.py.module.ci", "module.ci.sandbox", "module.ci.sandbx.py", "module.ci[0].[1].sandbox.x", "module", "module.ci.url",
	} {
		if got, err := ParseAddress(text); err == nil {
			t.Errorf("%q: %+v, want an error", text, got)
		}
	}
}

func TestParseModule(t *testing.T) {
	for _, text := range []string{"module.ci", `module.ci["a"]`, "module.ci[2].module.db", `module.sandbox.module.b["]."]`} {
		if got, err := ParseModule(text); err != nil || got != text {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	if got, err := ParseModule(` module.ci[ "a" ] `); err != nil || got != `module.ci["a"]` {
		t.Errorf("with spaces: %q, %v", got, err)
	}
	for _, text := range []string{"", "module", "module.", "module.ci.", "module.ci.sandbox.py", "sandbox.py", "module.ci[x]", "module.ci.url", "module[0]"} {
		if got, err := ParseModule(text); err == nil {
			t.Errorf("%q: %q, want an error", text, got)
		}
	}
}

// anyKey draws the key of an address: none, text or number.
func anyKey(t *rapid.T, label string) any {
	switch rapid.IntRange(0, 2).Draw(t, label) {
	case 1:
		// What for_each gives is normalised by cty; so is what is read.
		return rapid.StringOf(rapid.RuneFrom([]rune("ab \"\\${}%\n\t\r~.[]é世\x00\x7f"))).Draw(t, label+" text")
	case 2:
		return rapid.IntRange(0, math.MaxInt32).Draw(t, label+" index")
	}
	return nil
}

// anyAddress draws the address of a sandbox, in modules or not.
func anyAddress(t *rapid.T) Address {
	name := func(label string) string { return rapid.StringMatching(`[a-z_][a-z0-9_-]{0,9}`).Draw(t, label) }
	a := Address{Type: "sandbox", Name: name("name"), Key: anyKey(t, "key")}
	for range rapid.IntRange(0, 3).Draw(t, "modules") {
		a.Module = inModule(a.Module, "module."+name("module")+index(anyKey(t, "module key")))
	}
	return a
}

func TestAddressTextReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := anyAddress(t)
		again, err := ParseAddress(a.String())
		if err != nil || again != a {
			t.Fatalf("%#v is written %s and read as %#v, %v", a, a, again, err)
		}
		if a.Module != "" {
			if module, err := ParseModule(a.Module); err != nil || module != a.Module {
				t.Fatalf("%s is read as the module %s, %v", a.Module, module, err)
			}
			if !namesModule(a.Module) {
				t.Fatalf("%s names no module", a.Module)
			}
		}
		if namesModule(a.String()) {
			t.Fatalf("%s names a module", a)
		}
	})
}

func TestCapabilities(t *testing.T) {
	if got := (Security{}).Capabilities(); !slices.Equal(got, DefaultCapabilities) || len(got) != 14 || !slices.IsSorted(got) {
		t.Errorf("nothing dropped: %v", got)
	}
	if got := (Security{DropCapabilities: []string{"ALL"}}).Capabilities(); got == nil || len(got) != 0 {
		t.Errorf("all dropped: %v", got)
	}
	got := (Security{DropCapabilities: []string{"CHOWN", "NET_ADMIN", "NET_RAW"}}).Capabilities()
	if len(got) != 12 || slices.Contains(got, "CAP_CHOWN") || slices.Contains(got, "CAP_NET_RAW") {
		t.Errorf("three dropped: %v", got)
	}
	for _, name := range DefaultCapabilities {
		if _, err := parseCapability(name); err != nil {
			t.Error(err)
		}
	}
}

func TestDefaultHostname(t *testing.T) {
	long := strings.Repeat("long", 20)
	for address, want := range map[string]string{
		"sandbox.py":                  "py",
		"sandbox.w[\"a\"]":            "a.w",
		"sandbox.w[3]":                "3.w",
		"sandbox.My_Box":              "my-box",
		"sandbox.w[\"A b.c\"]":        "a-b-c.w",
		"sandbox.w[\"世界\"]":           "x.w",
		"sandbox._":                   "x",
		"sandbox.w[\"" + long + "\"]": "",
		"no address":                  "no-address",
		"module.ci.sandbox.py":        "ci.py",
		`module.Ci["a"].module.db[0].sandbox.py["x"]`: "a.ci.0.db.x.py",
		"module.ci": "module-ci",
	} {
		got := DefaultHostname(address)
		if want != "" && got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
		if err := checkHostname(got); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	a, b := DefaultHostname("sandbox.w[\""+long+"a\"]"), DefaultHostname("sandbox.w[\""+long+"b\"]")
	if a == b {
		t.Errorf("two long keys give one host name: %q", a)
	}
}

func TestVersionConstraints(t *testing.T) {
	for _, c := range []struct {
		version, constraint string
		want                bool
	}{
		{"0.1.0", ">= 0.1", true}, {"0.1.0", "> 0.1", false}, {"0.1.0", "0.1", true}, {"0.1.0", "= 0.1.1", false},
		{"0.1.0", "!= 0.1.0", false}, {"0.2.3", "~> 0.2", true}, {"0.9.0", "~> 0.2", true}, {"1.0.0", "~> 0.2", false},
		{"0.2.9", "~> 0.2.1", true}, {"0.3.0", "~> 0.2.1", false}, {"0.2.0", "~> 0.2.1", false},
		{"1.4.0", ">= 1.0, < 2.0", true}, {"2.0.0", ">= 1.0, < 2.0", false}, {"v1.2.3-rc1", "<= 1.2.3", true},
	} {
		if got, err := satisfies(c.version, c.constraint); err != nil || got != c.want {
			t.Errorf("%s %s: %t, %v; want %t", c.version, c.constraint, got, err, c.want)
		}
	}
	for _, bad := range []string{"", "x", ">= ", ">> 1", "1.2.3.4", ">= 1, "} {
		if _, err := satisfies("1.0.0", bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestFormat(t *testing.T) {
	src := "# kept\nsandbox   \"py\" {\n image=image.base # too\n  command = [\"x\"]\n}\n"
	want := "# kept\nsandbox \"py\" {\n  image   = image.base # too\n  command = [\"x\"]\n}\n"
	got, diags := Format("main.hcl", []byte(src))
	if diags != nil || string(got) != want {
		t.Errorf("%s\n%v", got, diags)
	}
	again, _ := Format("main.hcl", got)
	if string(again) != want {
		t.Errorf("formatting twice differs: %s", again)
	}
	broken := []byte("sandbox {")
	if got, diags := Format("main.hcl", broken); !diags.HasErrors() || string(got) != string(broken) {
		t.Errorf("broken text: %q, %v", got, diags)
	}
	starter := Starter()["main.hcl"]
	if got, _ := Format("main.hcl", starter); string(got) != string(starter) {
		t.Errorf("the starter is not in canonical style:\n%s", got)
	}
}

func TestFprintColourAndControlCharacters(t *testing.T) {
	d := Diagnostic{Severity: "error", Summary: "bad \x1b[2J", Detail: strings.Repeat("word ", 40), Range: &Range{"main.hcl", Pos{1, 2}, Pos{1, 4}}, Snippet: "\tab\x1bc"}
	plain := box(d, false, 40)
	if strings.Contains(plain, "\x1b") {
		t.Errorf("a control character reaches the terminal: %q", plain)
	}
	if !strings.Contains(plain, "    ab\uFFFDc\n") || !strings.Contains(plain, "│          ^^\n") {
		t.Errorf("underline is not below the text:\n%s", plain)
	}
	for line := range strings.SplitSeq(plain, "\n") {
		if n := len([]rune(line)); n > 40 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	if long := box(d, false, 0); !strings.Contains(long, strings.TrimSpace(strings.Repeat("word ", 40))) {
		t.Errorf("width 0 wraps:\n%s", long)
	}
	if coloured := box(d, true, 40); !strings.Contains(coloured, styleRed) || strings.Contains(coloured, "\x1b[2J") {
		t.Errorf("colour: %q", coloured)
	}
}
