// Package seal keeps sensitive values out of files: what is to be stored is
// encrypted with a key that lies in a file of its own beside the state, made when
// something is sealed for the first time. Whoever has a copy of the state, a backup
// of it or a saved plan, but not that file, learns nothing of them but their length.
//
// Values are sealed with AES-256 in Galois/Counter Mode and a random 96-bit nonce
// (NIST SP 800-38D). What they are for is authenticated with them, so that a sealed
// value put in another's place is refused.
package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// FileName is the key file's name in the state directory. Each line is a key in
// base64; the first one seals, all of them open.
const FileName = "state.key"

const (
	version = "v1"
	keySize = 32
)

var (
	// ErrNoKey: the value was sealed with a key that the key file does not have.
	ErrNoKey = errors.New("it was sealed with a key that is not in " + FileName)
	// ErrKeyFile: what lies at the key file's place is not to be used.
	ErrKeyFile = errors.New("the key of sensitive values cannot be used")
	// ErrDamaged: what is to be opened was changed, or is not for this purpose.
	ErrDamaged = errors.New("the sealed value is damaged")
)

// Box seals and opens. The zero value is of no use; it is safe for concurrent use.
type Box struct {
	path string

	mu   sync.Mutex
	read bool
	keys []key
	text []byte      // what the file said
	info fs.FileInfo // of the file that said it; nil: there was none
}

type key struct {
	id   string // first 8 hex digits of the key's SHA-256
	aead cipher.AEAD
}

// In is the box whose key lies in a state directory. Nothing is read or made yet.
func In(dir string) *Box { return &Box{path: filepath.Join(dir, FileName)} }

// Path is the key file.
func (b *Box) Path() string { return b.path }

// Seal encrypts a value for a purpose, a short text that Open must be given too. It
// makes the key file where there is none, and it is on the disk before Seal returns: one
// that was removed under this process is written again, for else nobody could read later
// what is sealed now, nor what was.
func (b *Box) Seal(value []byte, purpose string) (string, error) {
	k, err := b.sealing()
	if err != nil {
		return "", err
	}
	nonce := make([]byte, k.aead.NonceSize(), k.aead.NonceSize()+len(value)+k.aead.Overhead())
	rand.Read(nonce) // never fails
	sealed := k.aead.Seal(nonce, nonce, value, []byte(purpose))
	return strings.Join([]string{version, k.id, base64.RawStdEncoding.EncodeToString(sealed)}, "."), nil
}

// Open decrypts what Seal returned. Errors are ErrNoKey, ErrDamaged, or of reading
// the key file.
func (b *Box) Open(sealed, purpose string) ([]byte, error) {
	part := strings.Split(sealed, ".")
	if len(part) != 3 || part[0] != version {
		return nil, fmt.Errorf("%w: it is not of a form that this pinfold knows", ErrDamaged)
	}
	k, err := b.opening(part[1])
	if err != nil {
		return nil, err
	}
	data, err := base64.RawStdEncoding.DecodeString(part[2])
	if err != nil || len(data) < k.aead.NonceSize() {
		return nil, ErrDamaged
	}
	value, err := k.aead.Open(nil, data[:k.aead.NonceSize()], data[k.aead.NonceSize():], []byte(purpose))
	if err != nil {
		return nil, ErrDamaged
	}
	return value, nil
}

// sealing is the key to seal with, made when there is none.
func (b *Box) sealing() (key, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.follow(); err != nil {
		return key{}, err
	}
	if err := b.load(); err != nil {
		return key{}, err
	}
	if len(b.keys) == 0 {
		if err := b.make(); err != nil {
			return key{}, err
		}
	}
	return b.keys[0], nil
}

// opening is the key of that name. One that is not known may have been put back.
func (b *Box) opening(id string) (key, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range 2 {
		if err := b.load(); err != nil {
			return key{}, err
		}
		for _, k := range b.keys {
			if k.id == id {
				return k, nil
			}
		}
		b.read = false
	}
	return key{}, fmt.Errorf("%w (%s)", ErrNoKey, b.path)
}

// follow makes sure that the keys in memory are those in the file.
func (b *Box) follow() error {
	if !b.read || b.info == nil {
		b.read = false
		return nil
	}
	info, err := os.Lstat(b.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err := writeNew(b.path, b.text)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the state is gone with it, and whoever writes that says so
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("cannot write the key of sensitive values again, which was removed: %w", err)
		}
		b.read = false
	case err != nil:
		return fmt.Errorf("cannot look at the key of sensitive values: %w", err)
	case !os.SameFile(info, b.info) || info.Size() != b.info.Size() || !info.ModTime().Equal(b.info.ModTime()):
		b.read = false
	}
	return nil
}

func (b *Box) load() error {
	if b.read {
		return nil
	}
	// Opening waits for nobody, as it would with a pipe.
	f, err := os.OpenFile(b.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		b.keys, b.text, b.info, b.read = nil, nil, nil, true
		return nil
	case errors.Is(err, unix.ELOOP):
		return b.unfit("it is a symbolic link")
	case err != nil:
		return fmt.Errorf("%w: %w", ErrKeyFile, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrKeyFile, err)
	}
	if !info.Mode().IsRegular() {
		return b.unfit("it is not a regular file")
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && int(owner) != os.Geteuid() {
		return fmt.Errorf("%w: %s belongs to user %d, who may read it; run: chown %d %s", ErrKeyFile, b.path, owner, os.Geteuid(), b.path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%w: others than its owner may use %s (mode %04o); run: chmod 0600 %s", ErrKeyFile, b.path, info.Mode().Perm(), b.path)
	}
	const most = 64 << 10
	data := make([]byte, most+1)
	n, err := f.Read(data)
	if err != nil && n == 0 || n > most {
		return b.unfit("it is empty or too large")
	}
	keys, err := parse(data[:n])
	if err != nil {
		return b.unfit(err.Error())
	}
	b.keys, b.text, b.info, b.read = keys, data[:n], info, true
	return nil
}

func (b *Box) unfit(why string) error {
	return fmt.Errorf("%w: %s: %s; put the one back that was there, or move it away", ErrKeyFile, b.path, why)
}

func parse(data []byte) ([]key, error) {
	var keys []key
	for line := range bytes.Lines(data) {
		text := strings.TrimSpace(string(line))
		if text == "" {
			continue
		}
		secret, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(secret) != keySize {
			return nil, fmt.Errorf("line %d is not %d bytes in base64", len(keys)+1, keySize)
		}
		k, err := newKey(secret)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, errors.New("it is empty")
	}
	return keys, nil
}

func newKey(secret []byte) (key, error) {
	block, err := aes.NewCipher(secret)
	if err != nil {
		return key{}, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return key{}, err
	}
	sum := sha256.Sum256(secret)
	return key{hex.EncodeToString(sum[:4]), aead}, nil
}

// make writes a new key file, whole or not at all, without ever replacing one.
func (b *Box) make() error {
	secret := make([]byte, keySize)
	rand.Read(secret) // never fails
	if err := writeNew(b.path, []byte(base64.StdEncoding.EncodeToString(secret)+"\n")); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot make the key of sensitive values: %w", err)
	}
	b.read = false // of this one, or of whoever was faster
	if err := b.load(); err != nil {
		return err
	}
	if len(b.keys) == 0 {
		return fmt.Errorf("cannot make the key of sensitive values: %s is gone again", b.path)
	}
	return nil
}

func writeNew(path string, content []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
