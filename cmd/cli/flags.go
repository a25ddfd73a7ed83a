package cli

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/config"
	"pinfold/reconcile"
)

// value is a flag value by two functions.
type value struct {
	set  func(string) error
	show func() string
}

func (v value) Set(s string) error { return v.set(s) }
func (v value) Get() any           { return v.String() }
func (v value) String() string {
	if v.show == nil {
		return ""
	}
	return v.show()
}

func custom(name, usage string, set func(string) error, aliases ...string) cli.Flag {
	return &cli.GenericFlag{Name: name, Aliases: aliases, Usage: usage, Value: value{set: set}}
}

// listFlag may be given several times.
func listFlag(dst *[]string, name, usage string, aliases ...string) cli.Flag {
	return custom(name, usage, func(s string) error {
		if s == "" {
			return errors.New("the value is empty")
		}
		*dst = append(*dst, s)
		return nil
	}, aliases...)
}

// misnamed is a value of an address flag that lacks its type.
type misnamed struct{ flag, text string }

// addressFlag is a list of addresses, as read reads them. What could be the name of
// a sandbox is left to short: what is declared is known only when all flags are.
func addressFlag(dst *[]string, short *[]misnamed, name, usage string, read func(string) (string, error)) cli.Flag {
	return custom(name, usage, func(s string) error {
		address, err := read(s)
		if err != nil {
			if _, again := parseAddress("sandbox." + s); again == nil {
				*short = append(*short, misnamed{name, s})
				return nil
			}
			return err
		}
		*dst = append(*dst, address)
		return nil
	})
}

// lengthFlag is an optional duration in the language's notation, not negative.
func lengthFlag(dst **config.Duration, name, usage string) cli.Flag {
	return custom(name, usage, func(s string) error {
		d, err := config.ParseDuration(s)
		if err != nil {
			return err
		}
		if d < 0 {
			return fmt.Errorf("%q is negative", s)
		}
		*dst = &d
		return nil
	})
}

// instantFlag is an optional RFC 3339 instant.
func instantFlag(dst **time.Time, name, usage string) cli.Flag {
	return custom(name, usage, func(s string) error {
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			return fmt.Errorf("%q is not an RFC 3339 instant; write one such as 2026-12-01T00:00:00Z", s)
		}
		*dst = &t
		return nil
	})
}

// lockFlag is -lock-timeout.
func lockFlag(dst *time.Duration) cli.Flag {
	*dst = 10 * time.Second
	return &cli.GenericFlag{Name: "lock-timeout", Usage: "wait at most `DURATION` for another command that has the state; 0 does not wait", Value: value{
		set: func(s string) error {
			d, err := config.ParseDuration(s)
			if err != nil {
				return err
			}
			if d < 0 {
				return fmt.Errorf("%q is negative", s)
			}
			if *dst = time.Duration(d); d == 0 {
				*dst = reconcile.NoLockWait
			}
			return nil
		},
		show: func() string { return config.Duration(max(0, *dst)).String() },
	}}
}

// signalFlag is -s of kill: a signal by its name or number.
func signalFlag(dst *int) cli.Flag {
	*dst = int(syscall.SIGKILL)
	return &cli.GenericFlag{Name: "signal", Aliases: []string{"s"}, Usage: "what to send: the name or number of a `SIGNAL`", Value: value{
		set: func(s string) (err error) {
			*dst, err = config.ParseSignal(s)
			return err
		},
		show: func() string { return config.SignalName(*dst) },
	}}
}

func boolFlag(dst *bool, name, usage string, aliases ...string) *cli.BoolFlag {
	return &cli.BoolFlag{Name: name, Aliases: aliases, Usage: usage, Value: *dst, Destination: dst}
}

func stringFlag(dst *string, name, usage string, aliases ...string) *cli.StringFlag {
	return &cli.StringFlag{Name: name, Aliases: aliases, Usage: usage, Value: *dst, Destination: dst}
}

func (r *run) jsonFlag() cli.Flag {
	return boolFlag(&r.json, "json", "for programs: write one JSON document to standard output, errors included")
}

// inputFlags set input variables, in the order given.
func (r *run) inputFlags(in *config.Inputs) []cli.Flag {
	in.Environ = r.Environ
	in.Order = []string{}
	return []cli.Flag{
		custom("var", "set an input variable, quoted for the shell: `'NAME=VALUE'`; may be repeated, and wins over PINFOLD_VAR_NAME, pinfold.pfvars and *.auto.pfvars", func(s string) error {
			name, text, ok := strings.Cut(s, "=")
			plain := strings.TrimSpace(name)
			switch {
			case !ok || plain == "":
				return fmt.Errorf("%q is not NAME=VALUE", s)
			case plain != name: // the value would begin with a space that nobody meant
				return fmt.Errorf("%q has a space beside the name; did you mean '%s=%s'?", s, plain, strings.TrimSpace(text))
			}
			in.Order = append(in.Order, fmt.Sprintf("var:%d", len(in.Vars)))
			in.Vars = append(in.Vars, s)
			return nil
		}),
		custom("var-file", "take input variables from `FILE`, written NAME = VALUE; may be repeated. Of -var and -var-file the later wins", func(s string) error {
			in.Order = append(in.Order, fmt.Sprintf("file:%d", len(in.VarFiles)))
			in.VarFiles = append(in.VarFiles, s)
			return nil
		}),
	}
}
