package plan

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"pinfold/config"
)

// paths lists the attribute paths of a type as a diff words them: below a block
// of its own the nested ones, maps and lists as one.
func paths(t reflect.Type, prefix string) []string {
	var out []string
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		ft := f.Type
		if ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		if ft.Kind() == reflect.Struct && ft != reflect.TypeFor[time.Time]() {
			out = append(out, paths(ft, prefix+name+".")...)
			continue
		}
		out = append(out, prefix+name)
	}
	return out
}

var classWords = map[Class]string{Unclassed: "unclassed", InPlace: "in place", Restart: "restart", Replace: "replace", Refused: "refused"}

// A new attribute without a class fails here.
func TestEveryAttributeHasAClass(t *testing.T) {
	all := map[string]bool{}
	for _, p := range append(paths(reflect.TypeFor[config.Sandbox](), ""), paths(reflect.TypeFor[config.Lifecycle](), "lifecycle.")...) {
		all[p] = true
		if ClassOf(p) == Unclassed {
			t.Errorf("%s has no class", p)
		}
	}
	for _, ty := range []reflect.Type{reflect.TypeFor[config.Network](), reflect.TypeFor[config.Volume](), reflect.TypeFor[config.Image]()} {
		for _, p := range paths(ty, "") {
			all[p] = true
			if ClassOf(p) == Unclassed {
				t.Errorf("%s of a %s has no class", p, ty.Name())
			}
		}
	}
	for p := range classes {
		if !all[p] && p != "network" {
			t.Errorf("%s has a class, but no such attribute exists", p)
		}
	}
}

// What docs/language.md says each change costs, row by row.
func TestClassOf(t *testing.T) {
	for want, list := range map[Class]string{
		InPlace:   "labels labels.team shutdown_time shutdown_policy lifetime.ttl lifetime.on_lost operating_mode resources.memory port.http port.http.host stop_signal stop_grace lifecycle.prevent_destroy volume.work.on_destroy internet",
		Restart:   "command command[2] env.WHO working_dir user hostname mount mount[0].path file[\"/etc/app.toml\"].content security.drop_capabilities security.read_only_root",
		Replace:   "image security.user_namespace network network.name cidr source",
		Refused:   "volume volume.work volume.work.path volume.work.read_only",
		Unclassed: "imagination lifetime lifetime.colour security.colour",
	} {
		for p := range strings.FieldsSeq(list) {
			if got := ClassOf(p); got != want {
				t.Errorf("%s is %s, want %s", p, classWords[got], classWords[want])
			}
		}
	}
}

// vary changes one value to another of its type.
func vary(v reflect.Value) {
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(t0.Add(time.Hour)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Float64:
		v.SetFloat(v.Float() + 1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		vary(v.Index(0))
	case reflect.Map:
		m := reflect.MakeMap(v.Type())
		e := reflect.New(v.Type().Elem()).Elem()
		vary(e)
		m.SetMapIndex(reflect.ValueOf("k"), e)
		v.Set(m)
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		vary(p.Elem())
		v.Set(p)
	case reflect.Struct:
		vary(v.Field(0))
	default:
		panic("cannot vary a " + v.Type().String())
	}
}

// leaves calls f with each settable field, those of nested blocks included.
func leaves(v reflect.Value, path string, f func(path string, v reflect.Value)) {
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		fv := v.Field(i)
		if fv.Kind() == reflect.Struct && fv.Type() != reflect.TypeFor[time.Time]() {
			leaves(fv, path+name+".", f)
			continue
		}
		f(path+name, fv)
	}
}

// Each field, changed alone, is seen by the comparison, comes out of the diff
// under its own path, and costs what its class says.
func TestEveryFieldIsCompared(t *testing.T) {
	base := spec()
	n := 0
	var probe config.Sandbox
	leaves(reflect.ValueOf(&probe).Elem(), "", func(path string, _ reflect.Value) {
		n++
		changed := spec()
		leaves(reflect.ValueOf(&changed).Elem(), "", func(p string, v reflect.Value) {
			if p == path {
				vary(v)
			}
		})
		if sameSandbox(&base, &changed) {
			t.Errorf("a change of %s goes unnoticed", path)
			return
		}
		ds := diffSandbox(&base, &changed)
		if len(ds) != 1 || !covers(path, ds[0].Path) {
			t.Errorf("a change of %s is a difference in %v", path, ds)
			return
		}
		if want := max(ClassOf(path), ClassOf(ds[0].Path)); ds[0].class != want {
			t.Errorf("a change of %s costs %s, want %s", path, classWords[ds[0].class], classWords[want])
		}
	})
	if n < 25 {
		t.Errorf("only %d fields walked", n)
	}
}

// What comes back from JSON is the same sandbox, though empty maps are gone and
// times have another location.
func TestStoredSpecIsTheSame(t *testing.T) {
	a := spec(shutdown(t0.In(time.FixedZone("x", 3600))))
	a.Env, a.Mounts, a.Security.DropCapabilities = map[string]string{}, []config.Mount{}, []string{}
	var b config.Sandbox
	if err := json.Unmarshal(encode(a), &b); err != nil {
		t.Fatal(err)
	}
	if !sameSandbox(&a, &b) {
		t.Errorf("%v\nis not\n%v", a, b)
	}
}
