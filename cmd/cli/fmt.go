package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
)

type formatting struct {
	check, diff, recursive bool
}

func (r *run) fmtCommand() *cli.Command {
	var f formatting
	return &cli.Command{
		Name: "fmt", Usage: "lay files out in the canonical style", UsageText: "pinfold fmt [flags] [FILE | DIR | -]...", Category: "config",
		Description: "Rewrites *.hcl and *.pfvars files of the current directory, or those named, and lists the ones that changed. With - it formats standard input to standard output.",
		Flags: []cli.Flag{
			boolFlag(&f.check, "check", "change nothing; exit 1 and list the files that are not formatted"),
			boolFlag(&f.diff, "diff", "show what changes, as diff does"),
			boolFlag(&f.recursive, "recursive", "format the directories below, too"),
		},
		Metadata: example("pinfold fmt", "pinfold fmt -check -diff"),
		Action: func(_ context.Context, cmd *cli.Command) error {
			args := cmd.Args().Slice()
			if len(args) == 0 {
				args = []string{"."}
			}
			if slices.Contains(args, "-") {
				if len(args) > 1 {
					return usage(cmd, "standard input (-) stands alone")
				}
				return r.formatStdin(f)
			}
			return r.format(f, args)
		},
	}
}

func (r *run) formatStdin(f formatting) error {
	src, err := io.ReadAll(r.In)
	if err != nil {
		return fmt.Errorf("cannot read standard input: %w", err)
	}
	out, diags := config.Format("<stdin>", src)
	if diags.HasErrors() {
		return &diagnosed{all: diags}
	}
	same := bytes.Equal(src, out)
	switch {
	case f.diff && !same:
		r.out.Unified("<stdin>", src, out)
	case !f.check:
		if _, err := r.out.Write(out); err != nil {
			return err
		}
	}
	if f.check && !same {
		return exitWith(exitError)
	}
	return nil
}

func (r *run) format(f formatting, paths []string) error {
	var files []string
	for _, path := range paths {
		found, err := configurationFiles(path, f.recursive)
		if err != nil {
			return fmt.Errorf("cannot look for files to format: %w", err)
		}
		files = append(files, found...)
	}
	slices.Sort(files)
	var wrong config.Diagnostics
	changed := 0
	for _, file := range slices.Compact(files) {
		src, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("cannot format: %w", err)
		}
		out, diags := config.Format(file, src)
		wrong = append(wrong, diags...)
		if diags.HasErrors() || bytes.Equal(src, out) {
			continue
		}
		changed++
		r.out.Printf("%s\n", view.Printable(file))
		if f.diff {
			r.out.Unified(file, src, out)
		}
		if !f.check {
			if err := replaceFile(file, out); err != nil {
				return fmt.Errorf("cannot write the formatted file: %w", err)
			}
		}
	}
	if wrong.HasErrors() {
		return &diagnosed{all: wrong}
	}
	if f.check && changed > 0 {
		return exitWith(exitError)
	}
	return nil
}

// replaceFile writes a file whole or not at all, following a symbolic link and
// keeping mode and owner.
func replaceFile(path string, content []byte) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(real)
	if err != nil {
		return err
	}
	t, err := renameio.NewPendingFile(real, renameio.WithPermissions(info.Mode().Perm()), renameio.WithExistingPermissions())
	if err != nil {
		return err
	}
	defer t.Cleanup()
	if err := keepOwner(t.File, info); err != nil {
		return err
	}
	if _, err := t.Write(content); err != nil {
		return err
	}
	return t.CloseAtomicallyReplace()
}

// configurationFiles are the files under path that fmt is for.
func configurationFiles(path string, recursive bool) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		if !formattable(path) {
			return nil, fmt.Errorf("%s is neither *.hcl nor *.pfvars", path)
		}
		return []string{filepath.Clean(path)}, nil
	}
	var out []string
	err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if p != path && (!recursive || strings.HasPrefix(d.Name(), ".")) {
				return filepath.SkipDir
			}
		case formattable(p) && !strings.HasPrefix(d.Name(), "."):
			out = append(out, filepath.Clean(p))
		}
		return nil
	})
	return out, err
}

func formattable(name string) bool {
	return strings.HasSuffix(name, ".hcl") || strings.HasSuffix(name, ".pfvars")
}
