package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// disk is what functions see of the file system. While a configuration is
// loaded it reads the real one and keeps what it read in the Source; afterwards
// it answers from the Source alone.
type disk struct {
	source    *Source
	live      bool
	valueless bool // of Check
}

// maxRead bounds a file of the configuration or that a function reads, in bytes: it
// becomes part of every saved plan.
const maxRead = 16 << 20

// clean is the key of a path in Source.Reads: relative paths are relative to
// the configuration's directory.
func (d *disk) clean(path string) (key, full string) {
	key = filepath.Clean(path)
	if filepath.IsAbs(key) {
		return key, key
	}
	return key, filepath.Join(d.source.Dir, key)
}

// read returns a file's content.
func (d *disk) read(path string) ([]byte, error) {
	key, full := d.clean(path)
	if content, kept := d.source.Reads[key]; kept {
		return content, nil
	}
	if why, failed := d.source.unread[key]; failed {
		return nil, errors.New(why)
	}
	if !d.live {
		return nil, fmt.Errorf("no file %s was found when the configuration was loaded; check the name, which is relative to the configuration's directory, and that it does not depend on values known only after apply", key)
	}
	content, err := readBounded(full)
	if err != nil {
		return nil, d.failed(key, fmt.Errorf("file %s cannot be read: %s", key, reason(err)))
	}
	d.source.Reads[key] = content
	return content, nil
}

// failed keeps the reason of a failed look at the disk for the evaluations that
// follow.
func (d *disk) failed(key string, err error) error {
	d.source.lost(key, err.Error())
	return err
}

// maxWait bounds how long a file is read that has nothing to give for now, such as
// /proc/kmsg.
const maxWait = 2 * time.Second

// readBounded reads a file that has an end. It is looked at before it is opened, for
// opening alone may wait or have an effect, as with a pipe or /dev/watchdog; and again
// after, for it may have become another one meanwhile.
func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil {
		err = bounded(info)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err == nil {
		err = bounded(info)
	}
	if err != nil {
		return nil, err
	}
	_ = f.SetReadDeadline(time.Now().Add(maxWait)) // refused for what never waits
	return readAll(f)
}

// readGiven reads a file that was named on the command line, which may be a pipe from
// the shell, or /dev/null.
func readGiven(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil || info.IsDir() || info.Mode().IsRegular() {
		return readBounded(path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f)
}

func bounded(info fs.FileInfo) error {
	switch {
	case !info.Mode().IsRegular():
		return errors.New("it is not a regular file")
	case info.Size() > maxRead:
		return fmt.Errorf("it has %d bytes, and at most %d are read", info.Size(), maxRead)
	}
	return nil
}

// readAll reads to the end, which files may have that tell no size.
func readAll(r io.Reader) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxRead+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errors.New("it does not end")
	case err == nil && len(content) > maxRead:
		return nil, fmt.Errorf("it has more than the %d bytes that are read", maxRead)
	}
	return content, err
}

// exists reports whether path is a regular file.
func (d *disk) exists(path string) (bool, error) {
	key, full := d.clean(path)
	call := "fileexists(" + quote(key) + ")"
	if found, kept := d.source.Globs[call]; kept {
		return len(found) > 0, nil
	}
	if !d.live {
		return false, fmt.Errorf("whether file %s exists was not looked up when the configuration was loaded; its name must not depend on values known only after apply", key)
	}
	info, err := os.Stat(full)
	if err == nil && info.Mode().IsRegular() {
		d.source.Globs[call] = []string{key}
		return true, nil
	}
	d.source.Globs[call] = []string{}
	return false, nil
}

// glob lists the regular files under path that match pattern, relative to
// path, sorted. ** crosses directories, * and ? do not.
func (d *disk) glob(path, pattern string) ([]string, error) {
	key, full := d.clean(path)
	call := "fileset(" + quote(key) + ", " + quote(pattern) + ")"
	if found, kept := d.source.Globs[call]; kept {
		return found, nil
	}
	match, err := globRegexp(pattern)
	if err != nil {
		return nil, err
	}
	if why, failed := d.source.unread[call]; failed {
		return nil, errors.New(why)
	}
	if !d.live {
		return nil, fmt.Errorf("%s was not looked up when the configuration was loaded; its arguments must not depend on values known only after apply", call)
	}
	found := []string{}
	err = filepath.WalkDir(full, func(at string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(full, at)
		if err != nil || entry.IsDir() || !match.MatchString(relative) {
			return err
		}
		if info, err := os.Stat(at); err == nil && info.Mode().IsRegular() {
			found = append(found, relative)
		}
		return nil
	})
	if err != nil {
		return nil, d.failed(call, fmt.Errorf("directory %s cannot be listed: %s", key, reason(err)))
	}
	slices.Sort(found)
	d.source.Globs[call] = found
	return found, nil
}

// globRegexp translates a glob with **, *, ?, [...] and {a,b}.
func globRegexp(pattern string) (*regexp.Regexp, error) {
	var out strings.Builder
	out.WriteString("^")
	depth := 0
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; c {
		case '*':
			switch {
			case strings.HasPrefix(pattern[i:], "**/"):
				out.WriteString("(?:.*/)?")
				i += 2
			case strings.HasPrefix(pattern[i:], "**"):
				out.WriteString(".*")
				i++
			default:
				out.WriteString("[^/]*")
			}
		case '?':
			out.WriteString("[^/]")
		case '[':
			end := strings.IndexByte(pattern[i:], ']')
			if end < 2 {
				return nil, fmt.Errorf("pattern %q has a [ without its ]", pattern)
			}
			class := pattern[i+1 : i+end]
			if class[0] == '!' {
				class = "^" + class[1:]
			}
			out.WriteString("[" + strings.ReplaceAll(class, `\`, `\\`) + "]")
			i += end
		case '{':
			depth++
			out.WriteString("(?:")
		case '}':
			if depth == 0 {
				return nil, fmt.Errorf("pattern %q has a } without its {", pattern)
			}
			depth--
			out.WriteString(")")
		case ',':
			if depth > 0 {
				out.WriteString("|")
			} else {
				out.WriteString(",")
			}
		case '\\':
			if i++; i == len(pattern) {
				return nil, fmt.Errorf("pattern %q ends in a backslash", pattern)
			}
			out.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		default:
			_, size := rune(c), 1
			for i+size < len(pattern) && pattern[i+size]&0xc0 == 0x80 {
				size++
			}
			out.WriteString(regexp.QuoteMeta(pattern[i : i+size]))
			i += size - 1
		}
	}
	if depth > 0 {
		return nil, fmt.Errorf("pattern %q has a { without its }", pattern)
	}
	out.WriteString("$")
	compiled, err := regexp.Compile(out.String())
	if err != nil {
		return nil, fmt.Errorf("pattern %q is not a file pattern", pattern)
	}
	return compiled, nil
}
