package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// told is all that a report says of the sound documents of a file.
func told(f *os.File) (*Report, map[string]string) {
	says := map[string]string{}
	r := report(f, f.Name(), Schema, func(bucket, key string, doc []byte) error {
		says[bucket+" "+key] = string(doc)
		return nil
	})
	says["lineage"], says["serial"] = r.Lineage, fmt.Sprint(r.Serial)
	return r, says
}

func TestReportOfASoundState(t *testing.T) {
	t.Parallel()
	file, now, _ := sample(t)
	path := filepath.Join(t.TempDir(), fileName)
	if err := os.WriteFile(path, file, 0o400); err != nil {
		t.Fatal(err)
	}
	r, err := VerifyFile(path, nil)
	if err != nil || !r.Sound() {
		t.Fatalf("%+v, %v", r, err)
	}
	if r.Lineage != now["lineage"] || fmt.Sprint(r.Serial) != now["serial"] || r.Schema != Schema || r.Created.IsZero() || r.Size != int64(len(file)) {
		t.Errorf("%+v", r)
	}
	if want := map[string]int{Sandboxes: 20, Images: 1, Networks: 1, History: 10}; !maps.Equal(r.Documents, want) {
		t.Errorf("documents %v", r.Documents)
	}
}

// One flipped bit in any byte of a file is reported, or nothing in it says anything
// else than before; but the bytes of the last commit's meta page, without which
// the commit before it is the last.
func TestEachByteFlipped(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	fill(t, s)
	update(t, s, func(x Tx) error {
		_, err := x.Append(History, bytes.Repeat([]byte("event"), 900)) // more than a page
		return errors.Join(err, x.Bump())
	})
	var used int64
	if err := s.(*store).db.View(func(b *bolt.Tx) error { used = b.Size(); return nil }); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := os.Truncate(s.Path(), used); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(s.Path(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, now := told(f)
	var reported, harmless, older int
	for at := range file {
		if _, err := f.WriteAt([]byte{file[at] ^ 1<<(at%8)}, int64(at)); err != nil {
			t.Fatal(err)
		}
		switch r, says := told(f); {
		case !r.Sound():
			reported++
		case maps.Equal(says, now):
			harmless++
		case at < 2*4096 && r.Serial == 1:
			older++
		default:
			t.Errorf("byte %d of page %d: the file was misread", at%4096, at/4096)
		}
		if _, err := f.WriteAt(file[at:at+1], int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("of %d flips %d were reported, %d harmless, %d lost the last commit", len(file), reported, harmless, older)
	if reported == 0 || harmless == 0 || older == 0 {
		t.Error("the test does not see what it should")
	}
}

// All damaged documents are told, not the first alone, and what the caller says of
// a document counts.
func TestReportNamesEachProblem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	update(t, s, func(x Tx) error {
		for i := range 5 {
			if err := x.Put(Sandboxes, fmt.Sprintf("sandbox.s%d", i), fmt.Appendf(nil, "document-%d", i)); err != nil {
				return err
			}
		}
		_, err := x.Append(History, []byte("document-9"))
		return err
	})
	s.Close()
	file, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range []string{"document-1", "document-3", "document-9"} {
		file = bytes.ReplaceAll(file, []byte(doc), []byte(strings.Replace(doc, "d", "D", 1)))
	}
	if err := os.WriteFile(s.Path(), file, 0o600); err != nil {
		t.Fatal(err)
	}
	was := digest(t, s.Path())
	r, err := Verify(context.Background(), Options{Dir: dir}, func(bucket, key string, doc []byte) error {
		if key == "sandbox.s4" {
			return errors.New("it says nothing")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	const wrong = "its checksum does not match"
	want := []string{"history 1: " + wrong, `sandboxes "sandbox.s1": ` + wrong, `sandboxes "sandbox.s3": ` + wrong, `sandboxes "sandbox.s4": it says nothing`}
	if strings.Join(r.Problems, "\n") != strings.Join(want, "\n") || r.Documents[Sandboxes] != 2 {
		t.Errorf("%q, %v", r.Problems, r.Documents)
	}
	if digest(t, s.Path()) != was {
		t.Error("the file was changed")
	}
}

func TestReportOfWhatIsNoState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	later := filepath.Join(dir, "later")
	if err := build(later, newUUID(), 0, nil); err != nil {
		t.Fatal(err)
	}
	setSchema(t, later, "7")
	for name, c := range map[string]struct {
		file []byte
		says string
	}{
		"empty": {nil, "it is empty"},
		"text":  {[]byte("text"), "too short"},
		"zeros": {make([]byte, 1<<16), "not a bbolt file"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, c.file, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := VerifyFile(path, nil)
		if err != nil || r.Sound() || !strings.Contains(r.Problems[0], c.says) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	r, err := VerifyFile(later, nil)
	if err != nil || r.Schema != 7 || r.Sound() || !strings.Contains(r.Problems[0], "newer pinfold") {
		t.Errorf("of a later schema: %+v, %v", r, err)
	}
	if _, err := VerifyFile(dir, nil); !errors.Is(err, ErrNotState) {
		t.Errorf("a directory: %v", err)
	}
	if _, err := VerifyFile(filepath.Join(dir, "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
	if _, err := Verify(context.Background(), Options{Dir: dir}, nil); !errors.Is(err, ErrNoState) {
		t.Errorf("a dir without a state: %v", err)
	}
}

// setSchema changes the schema of a closed file.
func setSchema(t testing.TB, path, schema string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(x *bolt.Tx) error {
		return x.Bucket([]byte(metaBucket)).Put([]byte(metaSchema), []byte(schema))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// An open store is read while it is written to, and what somebody else does to its
// file is seen.
func TestVerifyAnOpenStore(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	stop := make(chan struct{})
	done := make(chan error)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			err := s.Update(func(x Tx) error {
				return errors.Join(x.Put(Sandboxes, fmt.Sprint(i%50), bytes.Repeat([]byte("d"), 900)), x.Delete(Sandboxes, fmt.Sprint((i+25)%50)), x.Bump())
			})
			if err != nil {
				done <- err
				return
			}
		}
	}()
	var last uint64
	for end := time.Now().Add(time.Minute); last < 60 && time.Now().Before(end); {
		r, err := s.Verify(nil)
		if err != nil || !r.Sound() || r.Serial < last || r.Lineage != s.Lineage() {
			t.Fatalf("after serial %d: %+v, %v", last, r, err)
		}
		last = r.Serial
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if last < 60 {
		t.Errorf("in a minute there were %d changes", last)
	}

	update(t, s, func(x Tx) error { return x.Put(Images, "image.a", []byte("to be damaged")) })
	file, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(s.Path(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("T"), int64(bytes.LastIndex(file, []byte("to be damaged")))); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Verify(nil); err != nil || len(r.Problems) != 1 || !strings.Contains(r.Problems[0], "image.a") {
		t.Errorf("a damaged document: %+v, %v", r, err)
	}
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Verify(nil); err != nil || r.Sound() {
		t.Errorf("of nothing: %+v, %v", r, err)
	}
}

// What is no file is told of as all that is wrong is, and not followed.
func TestVerifyWhatIsNoFile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		put  func(path string) error
		says string
	}{
		"directory": {func(path string) error { return os.Mkdir(path, 0o700) }, "it is not a regular file"},
		"fifo":      {func(path string) error { return unix.Mkfifo(path, 0o600) }, "it is not a regular file"},
		"link":      {func(path string) error { return os.Symlink("/nowhere", path) }, "it is a symbolic link"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, fileName)
		if err := c.put(path); err != nil {
			t.Fatal(err)
		}
		r, err := Verify(context.Background(), Options{Dir: dir}, nil)
		if err != nil || r.Sound() || r.Path != path || r.Documents == nil || !slices.Equal(r.Problems, []string{c.says}) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}
