package sim

import (
	"fmt"
	"path"
	"strings"
)

// beneath resolves the host's symbolic links in source, which begins with root.
// Those in root's own path lead where they like; one below it that is absolute or
// leads out of root is an error.
func (w *World) beneath(root, source string) (string, error) {
	start, err := w.follow("/", root, false)
	if err != nil {
		return "", err
	}
	rest := strings.TrimPrefix(path.Clean(source), strings.TrimSuffix(path.Clean(root), "/"))
	at, err := w.follow(start, rest, true)
	if err != nil {
		return "", fmt.Errorf("host path %s: %w", source, err)
	}
	return at, nil
}

// follow walks rest from the directory start and returns where it ends.
func (w *World) follow(start, rest string, confined bool) (string, error) {
	at, links := start, 0
	for todo := strings.Split(rest, "/"); len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		if name == "" || name == "." {
			continue
		}
		next := path.Join(at, name)
		target, link := w.links[next]
		switch {
		case confined && (name == ".." && at == start || link && path.IsAbs(target)):
			return "", fmt.Errorf("a symbolic link on the way leads out of %s, or is absolute; allow_host_paths allows only what lies below that directory", start)
		case !link:
			at = next
			continue
		}
		if links++; links > 40 {
			return "", fmt.Errorf("%s: too many symbolic links", next)
		}
		if path.IsAbs(target) {
			at = "/"
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return at, nil
}
