package plan

import "testing"

func TestSplitModule(t *testing.T) {
	for address, want := range map[string][3]string{
		"sandbox.py":                          {"", "sandbox.py", "sandbox"},
		`sandbox.py["module.a.b"]`:            {"", `sandbox.py["module.a.b"]`, "sandbox"},
		"module.ci.sandbox.runner":            {"module.ci", "sandbox.runner", "sandbox"},
		`module.ci["a.b\"].c"].volume.x[0]`:   {`module.ci["a.b\"].c"]`, "volume.x[0]", "volume"},
		`module.a[1].module.b["x"].network.n`: {`module.a[1].module.b["x"]`, "network.n", "network"},
		"module.ci":                           {"", "module.ci", ""},
		"module.a.module.b":                   {"module.a", "module.b", ""},
		"output.x":                            {"", "output.x", "output"},
		"":                                    {"", "", ""},
		"module.":                             {"", "module.", ""},
	} {
		module, local := SplitModule(address)
		if got := [3]string{module, local, KindOf(address)}; got != want {
			t.Errorf("%s is %q, not %q", address, got, want)
		}
	}
}
