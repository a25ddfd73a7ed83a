package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Backups are copies of state.db in the directory backups beside it. Their names
// begin with the instant they were made at and the serial, so they sort by time:
//
//	state-20261201T080000Z-17.db                   of each day, the keepDaily newest are kept
//	state-20261201T080000Z-17-before-schema-2.db   before a conversion, keepConverted are kept
//	state-20261201T080000Z-17-manual.db            asked for; nobody but the user deletes them
//	state-20261201T080000Z-17-manual-2.db          the second of that second
//
// Each is made of one commit, synced, and read whole before it gets its name. One
// that cannot be made is worth a warning; it never stops anybody's work.

const (
	backupsName   = "backups"
	keepDaily     = 7
	keepConverted = 3
)

// backupWait bounds the wait for another process that makes a backup.
const backupWait = 10 * time.Second

// The kinds of backups, as their names end.
const (
	daily     = ""
	manual    = "-manual"
	converted = "-before-schema-"
)

// BackupFile is a file of the backups directory, by its name.
type BackupFile struct {
	Path   string
	At     time.Time
	Serial uint64
	kind   string
	nth    int // of those that would have one name
}

var backupName = regexp.MustCompile(`^state-(\d{8}T\d{6}Z)-(\d+)(-manual|-before-schema-\d+|)(?:-(\d+))?\.db$`)

// backupFile reads the name of a backup.
func backupFile(path string) (b BackupFile, ok bool) {
	m := backupName.FindStringSubmatch(filepath.Base(path))
	if m == nil {
		return b, false
	}
	b = BackupFile{Path: path, kind: m[3], nth: 1}
	if strings.HasPrefix(b.kind, converted) {
		b.kind = converted
	}
	var err, err2, err3 error
	b.At, err = time.Parse(stampLayout, m[1])
	b.Serial, err2 = strconv.ParseUint(m[2], 10, 64)
	if m[4] != "" {
		b.nth, err3 = strconv.Atoi(m[4])
	}
	return b, errors.Join(err, err2, err3) == nil
}

// Backups lists the backups of a state dir, newest first.
func Backups(stateDir string) ([]BackupFile, error) {
	dir := filepath.Join(stateDir, backupsName)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot list the backups in %s: %w", dir, bare(err))
	}
	var all []BackupFile
	for _, e := range entries {
		if b, ok := backupFile(filepath.Join(dir, e.Name())); ok {
			all = append(all, b)
		}
	}
	slices.SortStableFunc(all, func(a, b BackupFile) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(b.Serial, a.Serial), cmp.Compare(b.nth, a.nth), strings.Compare(b.Path, a.Path))
	})
	return all, nil
}

// NewestSound is the newest backup in which nothing is wrong; nil when there is
// none.
func NewestSound(stateDir string) *Report {
	all, _ := Backups(stateDir) // of a directory that cannot be read there is none
	for _, b := range all {
		if r, err := VerifyFile(b.Path, nil); err == nil && r.Sound() {
			return r
		}
	}
	return nil
}

// Backup puts a copy into backups that stays until somebody deletes it.
func (s *store) Backup() (*Report, error) { return s.backup(manual, "") }

// BackupDaily makes today's backup, unless there is one or nothing is recorded
// yet; nil without an error: it was not needed. With a report there is one, whatever
// the error. Days are those of UTC.
func (s *store) BackupDaily() (*Report, error) {
	dir := filepath.Dir(s.path)
	all, err := Backups(dir)
	if err != nil {
		return nil, noBackup(err)
	}
	today := time.Now().UTC().Format(time.DateOnly)
	for _, b := range all {
		if b.kind == daily && b.At.Format(time.DateOnly) == today {
			return nil, nil
		}
	}
	if empty, err := s.empty(); err != nil || empty {
		return nil, noBackup(err)
	}
	if err := s.roomForBackup(); err != nil {
		return nil, noBackup(err)
	}
	r, err := s.backup(daily, "")
	if r == nil {
		err = noBackup(err)
	}
	return r, err
}

// noBackup words the failure of a backup that nobody asked for.
func noBackup(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("no backup of the state was made: %w", err)
}

// empty tells that nothing was ever recorded.
func (s *store) empty() (empty bool, err error) {
	err = s.View(func(t Tx) error {
		x := t.(*tx)
		defer x.guard(metaBucket, "")
		empty = x.Serial() == 0
		for _, name := range documentBuckets {
			if b := x.bolt.Bucket([]byte(name)); b != nil {
				if k, _ := b.Cursor().First(); k != nil {
					empty = false
				}
			}
		}
		return nil
	})
	return empty, err
}

// roomForBackup sees that a backup nobody asked for does not take the space that
// the work needs.
func (s *store) roomForBackup() error {
	fi, err := s.file.Stat()
	if err != nil {
		return fmt.Errorf("cannot look at state %s: %w", s.path, bare(err))
	}
	dir := filepath.Dir(s.path)
	var on unix.Statfs_t
	if err := unix.Statfs(dir, &on); err != nil {
		return fmt.Errorf("cannot tell the free space in %s: %w", dir, err)
	}
	free := int64(on.Bavail) * on.Bsize
	if free < 4*fi.Size() {
		return fmt.Errorf("%w: %d MiB are left in %s, four times the %d MiB of state.db are wanted; free space there", ErrDiskFull, free>>20, dir, fi.Size()>>20)
	}
	return nil
}

// backup copies the last commit into the backups directory and drops the oldest of
// its kind. With a report there is a backup, and an error says what is left besides.
func (s *store) backup(kind, detail string) (*Report, error) {
	dir := filepath.Join(filepath.Dir(s.path), backupsName)
	d, err := lockBackups(dir)
	if err != nil {
		return nil, err
	}
	defer release(d)
	fresh := filepath.Join(dir, fileName+".new")
	if err := os.RemoveAll(fresh); err != nil { // of a process that was killed
		return nil, fmt.Errorf("cannot remove half-made backup %s: %w", fresh, bare(err))
	}
	r, err := s.copyTo(fresh)
	if err != nil {
		os.Remove(fresh)
		return nil, err
	}
	r.At = time.Now().UTC().Truncate(time.Second)
	r.Path, err = freeName(filepath.Join(dir, fmt.Sprintf("state-%s-%d%s%s", r.At.Format(stampLayout), r.Serial, kind, detail)))
	if err == nil {
		err = os.Rename(fresh, r.Path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		os.Remove(fresh)
		return nil, explain(r.Path, "write", err)
	}
	if err := rotate(filepath.Dir(s.path), kind, r.Path); err != nil {
		return r, fmt.Errorf("backup %s was made, and older ones that were to go are still there: %w", r.Path, err)
	}
	return r, nil
}

// freeName is a name for a backup that no other has: the caller has the lock.
func freeName(stem string) (string, error) {
	path := stem + ".db"
	for n := 2; ; n++ {
		if none, err := missing(path); none || err != nil {
			return path, err
		}
		path = fmt.Sprintf("%s-%d.db", stem, n)
	}
}

// lockBackups makes the directory, or checks the one that is there, and locks it
// against others that make a backup.
func lockBackups(dir string) (*os.File, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("cannot make %s: %w", dir, bare(err))
	}
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open the backups in %s: %w", dir, bare(err))
	}
	fi, err := d.Stat()
	switch {
	case err != nil:
		err = fmt.Errorf("cannot look at %s: %w", dir, bare(err))
	case fi.Mode().Perm()&0o002 != 0:
		err = fmt.Errorf("%s can be written by everyone (mode %04o); run: chmod 0700 %s", dir, fi.Mode().Perm(), dir)
	default:
		lock := lockWait{path: dir, dir: dir, started: time.Now(), deadline: time.Now().Add(backupWait)}
		err = lock.acquireDir(context.Background(), d)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// copyTo writes a copy to a new file.
func (s *store) copyTo(path string) (*Report, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, explain(path, "write", err)
	}
	r, err := s.BackupTo(f, path)
	return r, errors.Join(err, f.Close())
}

// BackupTo writes a copy of the last commit to an empty file, syncs it and reads
// it whole: a copy of a damaged state is ErrDamaged. path is for the words.
func (s *store) BackupTo(f *os.File, path string) (*Report, error) {
	s.views.RLock()
	defer s.views.RUnlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	err := s.view(func(b *bolt.Tx) error {
		_, err := b.WriteTo(f)
		return err
	})
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return nil, explain(path, "write backup", err)
	}
	r := report(f, path, s.reads, nil)
	if !r.Sound() {
		return nil, s.damaged(some(r.Problems))
	}
	return r, nil
}

// some is the first of several, with how many more there are.
func some(all []string) string {
	if len(all) > 1 {
		return fmt.Sprintf("%s; and %d more", all[0], len(all)-1)
	}
	return all[0]
}

// rotate deletes the oldest backups of a kind, but never the one just made, though
// a clock that was stepped back makes it the oldest.
func rotate(stateDir, kind, made string) error {
	keep := map[string]int{daily: keepDaily, converted: keepConverted}[kind]
	if keep == 0 {
		return nil
	}
	all, err := Backups(stateDir)
	if err != nil {
		return err
	}
	have := 1
	for _, b := range all {
		if b.kind != kind || b.Path == made {
			continue
		}
		if have++; have > keep {
			err = errors.Join(err, os.Remove(b.Path))
		}
	}
	return err
}
