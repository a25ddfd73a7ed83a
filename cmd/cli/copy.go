package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/reconcile"
)

func (r *run) copyCommand() *cli.Command {
	c := copying{run: r}
	return &cli.Command{
		Name: "cp", Usage: "copy files into a sandbox or out of it", UsageText: "pinfold cp [flags] (SANDBOX:PATH DST | SRC SANDBOX:PATH)", Category: "act",
		Description: "Copies a file or directory out of a sandbox or into it, as docker cp does. A directory goes into the one at the destination, or becomes it where there is none yet; SRC/. is what is in it. '-' stands for a tar archive on standard output or input. What has a colon in its name is written ./NAME.\n\nIt works on running, paused and stopped sandboxes, volumes and mounts included; nothing is copied from or to /proc, /sys and /dev. Files get their owner anew, root inside and you outside; links stay links. Outside, no link leads out of DST, each file comes whole or not at all, and none is set-user-id.",
		Flags: []cli.Flag{
			boolFlag(&c.archive, "archive", "keep owners: the numbers inside and outside are the same", "a"),
			boolFlag(&c.follow, "follow-link", "copy what SRC leads to, where SRC itself is a link", "L"),
			lockFlag(&c.lockWait),
		},
		UseShortOptionHandling: true,
		Metadata:               example("sudo pinfold cp py:/work/result.json .", "sudo pinfold cp ./app py:/srv", "sudo pinfold cp a:/data - | sudo pinfold cp - b:/"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 2, 2)
			if err != nil {
				return err
			}
			src, err := placeOf(args[0])
			if err != nil {
				return err
			}
			dst, err := placeOf(args[1])
			if err != nil {
				return err
			}
			switch {
			case src.sandbox != "" && dst.sandbox != "":
				return usage(cmd, "cp does not copy from sandbox to sandbox; pinfold cp %s - | pinfold cp - %s does", args[0], args[1])
			case src.sandbox != "":
				return c.out(ctx, src, dst.path)
			case dst.sandbox != "":
				return c.in(ctx, src.path, dst)
			}
			return usage(cmd, "cp needs a sandbox on one side, as in pinfold cp py:/etc/hosts %s", args[1])
		},
	}
}

// place is one side of a copy: a path here, or in a sandbox.
type place struct {
	sandbox string // empty: here
	path    string
}

// placeOf reads SANDBOX:PATH or a path. A path with a colon begins with "/" or ".".
func placeOf(text string) (place, error) {
	if text == "" {
		return place{}, failure("a path of cp is empty", "Write SANDBOX:PATH, a path here, or - for a tar archive.")
	}
	at := colon(text)
	if at < 0 || strings.HasPrefix(text, "/") || strings.HasPrefix(text, ".") {
		return place{path: text}, nil
	}
	address, err := sandboxAddress(text[:at])
	if err != nil {
		return place{}, err
	}
	inside := text[at+1:]
	if inside == "" {
		return place{}, failure(fmt.Sprintf("%s names no path in the sandbox", text), "Write one behind the colon, as in %s/etc/hosts.", text)
	}
	if !strings.HasPrefix(inside, "/") {
		inside = "/" + inside
	}
	return place{sandbox: address, path: inside}, nil
}

// colon is where the address ends: the first colon that is not within a key.
func colon(text string) int {
	quoted, depth := false, 0
	for i, c := range []byte(text) {
		switch {
		case c == '"' && (i == 0 || text[i-1] != '\\'):
			quoted = !quoted
		case quoted:
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ':' && depth <= 0:
			return i
		}
	}
	return -1
}

// copying is one cp.
type copying struct {
	*run
	archive, follow bool
	lockWait        time.Duration
	service         reconcile.Service
}

// open reaches the engine for a copy of the sandbox's files. Copies may be long, and
// two of them joined by a pipe, so without an agent they only read the state. What use
// of the sandbox changes there, that it wakes and is renewed, is done before.
func (c *copying) open(ctx context.Context, sandbox string) (err error) {
	n := need{verb: "cp", does: "copy files of sandboxes", lockWait: c.lockWait}
	if c.service, err = c.run.open(ctx, n); err != nil {
		return err
	}
	about, err := c.service.Describe(ctx, sandbox)
	if err != nil {
		err = suggest(ctx, c.service, sandbox, err)
	} else if life := about.Spec.Lifetime; !watched(ctx, c.service) && (life.IdleTimeout > 0 || life.ResumeOnAccess || life.RenewOnAccess > 0) {
		err = c.use(ctx, n, sandbox)
	}
	if err != nil {
		c.service.Close()
	}
	return err
}

// use uses the sandbox once with the state open for changes.
func (c *copying) use(ctx context.Context, n need, sandbox string) error {
	reading := n
	n.changes = true
	for _, next := range []need{n, reading} {
		if err := c.service.Close(); err != nil {
			return fmt.Errorf("cannot let go of the state: %w", err)
		}
		service, err := c.run.open(ctx, next)
		if err != nil {
			c.service = closed{c.service}
			return err
		}
		c.service = service
		if !next.changes {
			break
		}
		s, err := c.read(ctx, place{sandbox, "/."})
		if err != nil {
			return c.explain(ctx, place{sandbox: sandbox}, err)
		}
		s.drop()
	}
	return nil
}

// closed is an engine that is closed already.
type closed struct{ reconcile.Service }

func (closed) Close() error { return nil }

// stream is the tar archive of a path in a sandbox while it comes.
type stream struct {
	*tar.Reader
	first  *tar.Header
	pipe   *os.File
	ended  chan error
	cancel context.CancelFunc
}

// read begins a copy out and waits for the first entry, which says what is there.
func (c *copying) read(ctx context.Context, from place) (*stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	out, in, err := os.Pipe()
	if err != nil {
		cancel()
		return nil, fmt.Errorf("cannot make a pipe: %w", err)
	}
	s := &stream{Reader: tar.NewReader(out), pipe: out, ended: make(chan error, 1), cancel: cancel}
	context.AfterFunc(ctx, func() { out.Close() })
	go func() {
		err := c.service.CopyOut(ctx, reconcile.CopyRequest{Address: from.sandbox, Path: from.path, Archive: in})
		in.Close()
		s.ended <- err
	}()
	s.first, err = s.Next()
	if err == nil {
		return s, nil
	}
	return nil, s.failed(from, err)
}

// brokenStream is an error of what comes from the sandbox.
type brokenStream struct{ error }

func (b brokenStream) Unwrap() error { return b.error }

// Next is tar.Reader's.
func (s *stream) Next() (*tar.Header, error) {
	h, err := s.Reader.Next()
	if err != nil && err != io.EOF {
		err = brokenStream{err}
	}
	return h, err
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && err != io.EOF {
		err = brokenStream{err}
	}
	return n, err
}

// failed ends a stream whose reading stopped with err. What the sandbox's side
// says goes before: err may be no more than its consequence.
func (s *stream) failed(from place, err error) error {
	s.pipe.Close()
	s.cancel()
	if said := <-s.ended; said != nil && !isKind(said, reconcile.Interrupted) {
		return said
	}
	if err == io.EOF {
		return fmt.Errorf("cannot copy %s of %s: nothing there can be copied", from.path, from.sandbox)
	}
	return fmt.Errorf("cannot copy %s of %s: %w", from.path, from.sandbox, err)
}

// drop ends a stream of which no more is wanted.
func (s *stream) drop() {
	s.cancel()
	<-s.ended
}

// finish reads to the end and returns what the sandbox's side says.
func (s *stream) finish() error {
	defer s.cancel()
	_, err := io.Copy(io.Discard, s.pipe)
	if said := <-s.ended; said != nil {
		return said
	}
	return err
}

// explain adds to a failed copy what it may have meant.
func (c *copying) explain(ctx context.Context, p place, err error) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	return suggest(ctx, c.service, p.sandbox, err)
}

// out copies from a sandbox.
func (c *copying) out(ctx context.Context, src place, dst string) error {
	if dst == "-" && isTerminal(c.Out) {
		return failure("a tar archive is nothing for a terminal", "Send it into a file or a pipe: pinfold cp %s:%s - | tar -t", src.sandbox, src.path)
	}
	if err := c.open(ctx, src.sandbox); err != nil {
		return err
	}
	defer c.service.Close()
	from := src
	s, err := c.read(ctx, from)
	for hops := 0; err == nil && c.follow && s.first.Typeflag == tar.TypeSymlink; hops++ {
		target := s.first.Linkname
		s.drop()
		if hops == 40 { // as many as the kernel follows (path_resolution(7))
			return failure(fmt.Sprintf("%s of %s is a link that leads nowhere", src.path, src.sandbox), "It is too many links long.")
		}
		if !path.IsAbs(target) {
			target = path.Join(path.Dir(strings.TrimRight(from.path, "/")), target)
		}
		from.path = target
		s, err = c.read(ctx, from)
	}
	if err != nil {
		return c.explain(ctx, src, err)
	}
	name := path.Base(s.first.Name) // of the tree in the archive
	if dst == "-" {
		err = c.passOn(s, name, baseOf(src.path))
	} else {
		err = c.unpack(s, name, src.path, dst)
	}
	var broken brokenStream
	switch {
	case err == nil:
		err = s.finish()
	case errors.As(err, &broken):
		err = s.failed(src, broken.error)
	default:
		s.drop()
		return here(err, dst)
	}
	return c.explain(ctx, src, err)
}

// here names the destination of a copy that failed on this side.
func here(err error, dst string) error {
	var said *diagnosed
	if errors.As(err, &said) {
		return err
	}
	if dst == "-" {
		dst = "standard output"
	}
	return fmt.Errorf("cannot copy to %s: %w", dst, err)
}

// baseOf is the last part of a path, "." for one that stands for what is in it.
func baseOf(p string) string {
	if p == "/" || strings.HasSuffix(p, "/.") || p == "." {
		return "."
	}
	return path.Base(p)
}

// renamed is an entry's name with the tree's root called to instead of from.
func renamed(name, from, to string) string {
	name = path.Clean(strings.TrimLeft(name, "/"))
	if name == from {
		return to
	}
	if from == "." {
		return path.Join(to, name)
	}
	if rest, ok := strings.CutPrefix(name, from+"/"); ok {
		return path.Join(to, rest)
	}
	return name
}

// passOn writes the archive to standard output; a link that was followed keeps
// its own name.
func (c *copying) passOn(s *stream, from, to string) error {
	w := tar.NewWriter(c.run.out)
	for h := s.first; ; {
		if from != to {
			h.Name = renamed(h.Name, from, to)
			if h.Typeflag == tar.TypeDir {
				h.Name += "/"
			}
			if h.Typeflag == tar.TypeLink {
				h.Linkname = renamed(h.Linkname, from, to)
			}
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(w, s); err != nil {
			return err
		}
		var err error
		if h, err = s.Next(); err == io.EOF {
			return w.Close()
		} else if err != nil {
			return err
		}
	}
}

// unpack puts the tree at its place here, by the rules of docker cp.
func (c *copying) unpack(s *stream, name, src, dst string) error {
	isDir := s.first.Typeflag == tar.TypeDir
	there, err := os.Stat(dst)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failure("cannot copy to "+dst, "%v", err)
	}
	exists := err == nil
	into, as := dst, name // the directory, and what the tree is called in it
	switch {
	case exists && there.IsDir():
		if base := baseOf(src); base != "." {
			as = base
		} else {
			as = "."
		}
	case exists && isDir:
		return failure("cannot copy a directory to the file "+dst, "Name a directory, or what is not there yet.")
	case exists && !there.Mode().IsRegular():
		return failure(dst+" is neither a file nor a directory", "Write - for a tar archive on standard output.")
	case exists && strings.HasSuffix(dst, "/"):
		return failure(dst+" is not a directory", "Leave the / at its end out to replace the file.")
	case !exists && !isDir && strings.HasSuffix(dst, "/"):
		return failure("there is no directory "+dst, "Make it first, or leave the / at its end out.")
	default:
		if exists {
			if dst, err = filepath.EvalSymlinks(dst); err != nil {
				return failure("cannot copy to "+dst, "%v", err)
			}
		}
		dst = filepath.Clean(dst)
		into, as = filepath.Dir(dst), filepath.Base(dst)
	}
	root, err := os.OpenRoot(into)
	if err != nil {
		return failure("cannot copy to "+dst, "%v", err)
	}
	defer root.Close()
	u := &unpacking{root: root, owners: c.archive}
	defer u.end()
	for h := s.first; ; {
		h.Name = renamed(h.Name, name, as)
		if h.Typeflag == tar.TypeLink {
			h.Linkname = renamed(h.Linkname, name, as)
		}
		if err := u.add(h, s); err != nil {
			return err
		}
		if h, err = s.Next(); err == io.EOF {
			return u.end()
		} else if err != nil {
			return err
		}
	}
}

// in copies into a sandbox.
func (c *copying) in(ctx context.Context, src string, dst place) error {
	if src == "-" && isTerminal(c.In) {
		return failure("standard input is a terminal, not a tar archive", "Send one in: tar -c DIR | pinfold cp - %s:%s", dst.sandbox, dst.path)
	}
	var p packing
	if src != "-" {
		var err error
		if p, err = packed(src, c.follow, c.archive); err != nil {
			return err
		}
	}
	if err := c.open(ctx, dst.sandbox); err != nil {
		return err
	}
	defer c.service.Close()
	write := func(w io.Writer) error {
		_, err := io.Copy(w, c.In)
		return err
	}
	if src != "-" {
		into, as, err := c.placed(ctx, &p, src, dst)
		if err != nil {
			return c.explain(ctx, dst, err)
		}
		dst.path, p.as = into, as
		write = p.write
	}
	err := c.send(ctx, src, dst, write)
	for _, name := range p.skipped {
		fmt.Fprintf(c.err, "left out %s: neither a file, a directory nor a link\n", name)
	}
	return c.explain(ctx, dst, err)
}

// send unpacks in the sandbox what write writes.
func (c *copying) send(ctx context.Context, src string, dst place, write func(io.Writer) error) error {
	out, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot make a pipe: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { in.Close(); out.Close() })
	defer stop()
	written := make(chan error, 1)
	go func() {
		err := write(in)
		if err != nil {
			cancel() // a part must not look like the whole
		}
		in.Close()
		written <- err
	}()
	err = c.service.CopyIn(ctx, reconcile.CopyRequest{Address: dst.sandbox, Path: dst.path, Archive: out})
	out.Close() // ends a writer that has more to say
	if src == "-" {
		return err // nobody can tell whether more would come
	}
	if failed := <-written; failed != nil && !errors.Is(failed, os.ErrClosed) && !brokenPipe(failed) {
		return failed
	}
	return err
}

// placed decides by the rules of docker cp into which directory of the sandbox the
// tree goes and what it is called there.
func (c *copying) placed(ctx context.Context, p *packing, src string, dst place) (into, as string, err error) {
	isDir := p.info.IsDir()
	// A path that ends in "/." is a directory's, whatever links lead there.
	probe := dst
	probe.path = strings.TrimRight(dst.path, "/") + "/."
	s, notDir := c.read(ctx, probe)
	if notDir == nil {
		s.drop()
		if isDir && contents(src) {
			return probe.path, ".", nil
		}
		return probe.path, p.name, nil
	}
	if ctx.Err() != nil {
		return "", "", notDir
	}
	slash := strings.HasSuffix(dst.path, "/")
	probe.path = path.Clean(dst.path)
	switch s, err = c.read(ctx, probe); {
	case err == nil:
		link := s.first.Typeflag == tar.TypeSymlink
		s.drop()
		if isDir || slash {
			what := "file"
			if link {
				what = "link"
			}
			return "", "", failure(fmt.Sprintf("%s of %s is a %s, not a directory", probe.path, dst.sandbox, what), "Name a directory, or what is not there yet.")
		}
	case !isKind(err, reconcile.NotFound):
		return "", "", err
	case !isDir && slash:
		return "", "", failure(fmt.Sprintf("there is no directory %s in %s", dst.path, dst.sandbox), "Make it first, or leave the / at its end out.")
	}
	return path.Dir(probe.path), path.Base(probe.path), nil
}

// contents tells whether a path stands for what is in the directory.
func contents(src string) bool { return src == "." || strings.HasSuffix(src, "/.") }
