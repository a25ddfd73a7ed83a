package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// bbolt trusts its pages: a damaged one makes it panic, fault, allocate without
// bound or, worst, hand out a page that is in use. So the tree is walked here,
// by plain reads, before bbolt sees the file. The layout is bbolt's format 2
// (go.etcd.io/bbolt/internal/common: meta.go, page.go, bucket.go), in the
// machine's byte order. The rules are those of its own Check, and one more, that
// elements lie as bbolt writes them, without a gap: a count that became smaller
// would otherwise hide documents. Pages that are neither used nor free are let
// pass, for they do no harm.

// errIO marks a file that could not be read, which says nothing about its bytes.
var errIO = errors.New("reading failed")

// errForeign marks a file that is none of ours, as far as can be told.
var errForeign = errors.New("its format is another")

type foreign string

func (f foreign) Error() string        { return string(f) }
func (f foreign) Is(target error) bool { return target == errForeign }

const (
	boltMagic     = 0xED0CDAED
	boltVersion   = 2
	pageHeader    = 16
	branchPage    = 0x01
	leafPage      = 0x02
	freelistPage  = 0x10
	elementSize   = 16 // of branch and leaf elements alike
	bucketElement = 0x01
	bucketHeader  = 16
	metaSize      = 64
	noFreelist    = ^uint64(0)
	maxPageSize   = 16 << 20
	manyFree      = 0xFFFF // then the count is the list's first word
	maxDepth      = 64     // levels; a branch has two children at least
)

var native = binary.NativeEndian

type metaPage struct {
	pageSize             int64
	root, freelist, pgid uint64
	txid                 uint64
}

// verify returns what is wrong with the tree of the file, or nil.
func verify(f *os.File) error {
	m, err := latest(f)
	if err != nil {
		return err
	}
	return verifyTree(f, m, nil)
}

// latest is the meta page of the last commit.
func latest(f *os.File) (metaPage, error) {
	fi, err := f.Stat()
	if err != nil {
		return metaPage{}, fmt.Errorf("%w: %w", errIO, err)
	}
	return newestMeta(f, fi.Size())
}

// verifyTree returns what is wrong with the tree that hangs on m, and shows visit,
// if that is not nil, each value in it.
func verifyTree(f *os.File, m metaPage, visit func(bucket string, key, value []byte)) error {
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%w: %w", errIO, err)
	}
	if fi.Size() < 2*m.pageSize || m.pgid > uint64(fi.Size()/m.pageSize) {
		return fmt.Errorf("it is cut short: %d bytes of %d", fi.Size(), m.pgid*uint64(m.pageSize))
	}
	w := walk{file: f, meta: m, seen: make([]bool, m.pgid), visit: visit}
	if err := w.all(); err != nil {
		if errors.Is(err, errIO) {
			return err
		}
		return fmt.Errorf("it is damaged: %w", err)
	}
	return nil
}

// newestMeta returns the meta page that bbolt would use: of the valid ones that
// of the later transaction. One invalid meta page is what a power cut during a
// commit leaves, and no damage.
func newestMeta(f io.ReaderAt, size int64) (metaPage, error) {
	if size == 0 {
		return metaPage{}, errors.New("it is empty")
	}
	first, err0 := readMeta(f, 0)
	if err0 == nil {
		second, err := readMeta(f, first.pageSize)
		if errors.Is(err, errIO) {
			return metaPage{}, err
		}
		if err == nil && second.pageSize == first.pageSize && second.txid > first.txid {
			return second, nil
		}
		return first, nil
	}
	// Where the second begins is only known by trying.
	for pos := int64(1024); pos <= maxPageSize && pos < size && !errors.Is(err0, errIO); pos *= 2 {
		second, err := readMeta(f, pos)
		if err == nil && second.pageSize == pos {
			return second, nil
		}
		if errors.Is(err, errIO) {
			return metaPage{}, err
		}
	}
	return metaPage{}, err0
}

func readMeta(f io.ReaderAt, pos int64) (metaPage, error) {
	var page [pageHeader + metaSize]byte
	if _, err := f.ReadAt(page[:], pos); errors.Is(err, io.EOF) {
		return metaPage{}, foreign("it is too short for a bbolt file")
	} else if err != nil {
		return metaPage{}, fmt.Errorf("%w: %w", errIO, err)
	}
	b := page[pageHeader:]
	sum := fnv.New64a()
	sum.Write(b[:56])
	m := metaPage{
		pageSize: int64(native.Uint32(b[8:])),
		root:     native.Uint64(b[16:]),
		freelist: native.Uint64(b[32:]),
		pgid:     native.Uint64(b[40:]),
		txid:     native.Uint64(b[48:]),
	}
	switch {
	case native.Uint32(b) != boltMagic:
		return m, foreign("it is not a bbolt file")
	case native.Uint32(b[4:]) != boltVersion:
		return m, foreign(fmt.Sprintf("it has version %d of the bbolt format, not %d", native.Uint32(b[4:]), boltVersion))
	case native.Uint64(b[56:]) != sum.Sum64():
		return m, errors.New("it is damaged: the checksums of its meta pages do not match")
	case m.pageSize < 1024 || m.pageSize > maxPageSize || m.pageSize&(m.pageSize-1) != 0:
		return m, fmt.Errorf("it is damaged: page size %d", m.pageSize)
	}
	return m, nil
}

// walk visits every page in use.
type walk struct {
	file  io.ReaderAt
	meta  metaPage
	seen  []bool   // by page id
	spare [][]byte // buffers of one page

	visit func(bucket string, key, value []byte) // nil: nobody looks
	in    string                                 // the bucket that is walked, empty outside of any
}

func (w *walk) all() error {
	if w.meta.pgid < 3 {
		return errors.New("it has no pages")
	}
	w.seen[0], w.seen[1] = true, true
	if _, err := w.tree(w.meta.root, nil, nil, 0); err != nil {
		return err
	}
	if w.meta.freelist == noFreelist {
		return nil
	}
	return w.free(w.meta.freelist)
}

// page reads a page with its overflow, and marks it seen. The buffer is the
// caller's until it gives it back by done.
func (w *walk) page(id uint64) ([]byte, error) {
	if id < 2 || id >= w.meta.pgid {
		return nil, fmt.Errorf("page %d is out of range", id)
	}
	size := w.meta.pageSize
	var buf []byte
	if n := len(w.spare); n > 0 {
		buf, w.spare = w.spare[n-1], w.spare[:n-1]
	} else {
		buf = make([]byte, size)
	}
	if err := w.read(buf, id); err != nil {
		return nil, err
	}
	if got := native.Uint64(buf); got != id {
		return nil, fmt.Errorf("page %d says it is page %d", id, got)
	}
	over := uint64(native.Uint32(buf[12:]))
	if over >= w.meta.pgid-id {
		return nil, fmt.Errorf("page %d reaches out of range", id)
	}
	for i := id; i <= id+over; i++ {
		if w.seen[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		w.seen[i] = true
	}
	if over == 0 {
		return buf, nil
	}
	w.done(buf)
	buf = make([]byte, int64(over+1)*size)
	return buf, w.read(buf, id)
}

func (w *walk) read(buf []byte, id uint64) error {
	if _, err := w.file.ReadAt(buf, int64(id)*w.meta.pageSize); err != nil {
		return fmt.Errorf("%w: page %d: %w", errIO, id, err)
	}
	return nil
}

func (w *walk) done(buf []byte) {
	if int64(len(buf)) == w.meta.pageSize {
		w.spare = append(w.spare, buf)
	}
}

// tree checks the page and what hangs on it: every key is ≥ least, if that is
// not nil, and < bound, if that is not nil. It returns a copy of the last key.
func (w *walk) tree(id uint64, least, bound []byte, depth int) (last []byte, err error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("page %d lies too deep", id)
	}
	page, err := w.page(id)
	if err != nil {
		return nil, err
	}
	defer w.done(page)
	switch flags := native.Uint16(page[8:]); flags {
	case leafPage:
		last, err = w.leaf(page, least, bound, depth)
	case branchPage:
		last, err = w.branch(page, least, bound, depth)
	default:
		err = fmt.Errorf("type %#x where a tree page should be", flags)
	}
	if err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	return last, nil
}

func (w *walk) branch(page, least, bound []byte, depth int) (last []byte, err error) {
	n := int(native.Uint16(page[10:]))
	if n == 0 {
		return nil, errors.New("a branch without children")
	}
	end := int64(pageHeader + n*elementSize)
	key := func(i int) ([]byte, error) {
		at := pageHeader + i*elementSize
		if at+elementSize > len(page) {
			return nil, fmt.Errorf("element %d is out of the page", i)
		}
		return cut(page, &end, at, native.Uint32(page[at:]), native.Uint32(page[at+4:]))
	}
	this, err := key(0)
	if err != nil {
		return nil, err
	}
	last = least
	for i := range n {
		next := bound
		if i+1 < n {
			if next, err = key(i + 1); err != nil {
				return nil, err
			}
		}
		if err := inOrder(this, last, bound, i > 0); err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		child := native.Uint64(page[pageHeader+i*elementSize+8:])
		if last, err = w.tree(child, this, next, depth+1); err != nil {
			return nil, err
		}
		this = next
	}
	return last, nil
}

// leaf checks a leaf page, or the one inside an inline bucket.
func (w *walk) leaf(page, least, bound []byte, depth int) (last []byte, err error) {
	n := int(native.Uint16(page[10:]))
	if rest := page[pageHeader:]; n == 0 && !bytes.Equal(rest, make([]byte, len(rest))) {
		return nil, errors.New("no elements, but bytes of some")
	}
	end := int64(pageHeader + n*elementSize)
	prev := least
	for i := range n {
		at := pageHeader + i*elementSize
		if at+elementSize > len(page) {
			return nil, fmt.Errorf("element %d is out of the page", i)
		}
		flags, pos := native.Uint32(page[at:]), native.Uint32(page[at+4:])
		ksize, vsize := native.Uint32(page[at+8:]), native.Uint32(page[at+12:])
		whole, err := cut(page, &end, at, pos, ksize, vsize)
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		key, value := whole[:ksize], whole[ksize:]
		if err := inOrder(key, prev, bound, i > 0); err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		prev = key
		switch flags {
		case 0:
			if w.visit != nil {
				w.visit(w.in, key, value)
			}
		case bucketElement:
			outer := w.in
			w.in += string(key)
			if err := w.bucket(value, depth); err != nil {
				return nil, fmt.Errorf("bucket %.40q: %w", key, err)
			}
			w.in = outer
		default:
			return nil, fmt.Errorf("element %d has flags %#x", i, flags)
		}
	}
	return bytes.Clone(prev), nil
}

func (w *walk) bucket(value []byte, depth int) error {
	if len(value) < bucketHeader {
		return errors.New("its header is cut short")
	}
	if root := native.Uint64(value); root != 0 {
		_, err := w.tree(root, nil, nil, depth+1)
		return err
	}
	inline := value[bucketHeader:]
	if len(inline) < pageHeader || native.Uint16(inline[8:]) != leafPage {
		return errors.New("its inline page is none")
	}
	_, err := w.leaf(inline, nil, nil, depth+1)
	return err
}

// cut returns the bytes that the element at the offset at points to: pos bytes
// behind itself, as many as the sizes say. They must begin at end, which it moves
// behind them.
func cut(page []byte, end *int64, at int, pos uint32, sizes ...uint32) ([]byte, error) {
	from := int64(at) + int64(pos)
	to := from
	for _, s := range sizes {
		to += int64(s)
	}
	if from != *end || to > int64(len(page)) {
		return nil, errors.New("its bytes are not where they should be")
	}
	*end = to
	return page[from:to], nil
}

// inOrder checks key against the one before it, which it may equal only when
// that is an ancestor's, and against the bound.
func inOrder(key, prev, bound []byte, strict bool) error {
	if prev != nil {
		if c := bytes.Compare(prev, key); c > 0 || c == 0 && strict {
			return fmt.Errorf("key %.40q is out of order", key)
		}
	}
	if bound != nil && bytes.Compare(key, bound) >= 0 {
		return fmt.Errorf("key %.40q belongs to another page", key)
	}
	return nil
}

// free checks that no page of the freelist is in use or listed twice.
func (w *walk) free(id uint64) error {
	page, err := w.page(id)
	if err != nil {
		return err
	}
	defer w.done(page)
	if flags := native.Uint16(page[8:]); flags != freelistPage {
		return fmt.Errorf("page %d: type %#x where the freelist should be", id, flags)
	}
	ids := page[pageHeader:]
	n := uint64(native.Uint16(page[10:]))
	if n == manyFree {
		n, ids = native.Uint64(ids), ids[8:]
	}
	if n > uint64(len(ids)/8) {
		return fmt.Errorf("page %d: a freelist of %d pages does not fit", id, n)
	}
	for i := range n {
		free := native.Uint64(ids[8*i:])
		if free < 2 || free >= w.meta.pgid {
			return fmt.Errorf("page %d: free page %d is out of range", id, free)
		}
		if w.seen[free] {
			return fmt.Errorf("page %d: page %d is both free and in use, or free twice", id, free)
		}
		w.seen[free] = true
	}
	return nil
}
