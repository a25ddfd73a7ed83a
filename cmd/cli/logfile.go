package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// logBlock is how much of a log is read at a time.
const logBlock = 64 << 10

// logStart is where the first whole line of what is still there begins, at or
// after from: the oldest part of a long log is a hole, and what follows a hole
// begins anywhere in a line.
func logStart(f *os.File, from int64) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	data, err := unix.Seek(int(f.Fd()), from, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // nothing but a hole, or nothing, follows
		return max(from, info.Size()), nil
	case err != nil:
		return 0, fmt.Errorf("cannot find the start of the log: %w", err)
	case data <= from:
		return from, nil
	}
	block := make([]byte, logBlock)
	for at := data; ; {
		n, err := f.ReadAt(block, at)
		if i := bytes.IndexByte(block[:n], '\n'); i >= 0 {
			return at + int64(i) + 1, nil
		}
		at += int64(n)
		if err == io.EOF {
			return at, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// printLog writes the last tail lines of what the log has at this moment, or all
// of it (tail < 0). What is written meanwhile is not part of it: a sandbox that
// writes faster than this reads would never let it end.
func printLog(w io.Writer, f *os.File, tail int) error {
	end, err := logEnd(f)
	if err != nil {
		return err
	}
	var offset int64
	if tail >= 0 {
		if offset, err = logTail(f, tail, end); err != nil {
			return err
		}
	}
	_, err = copyLog(w, f, offset, end)
	return err
}

// logEnd is where the log ends now.
func logEnd(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// logTail is where the last n lines of what lies before end begin, found from
// the end.
func logTail(f *os.File, n int, end int64) (int64, error) {
	first, err := logStart(f, 0)
	if err != nil {
		return 0, err
	}
	if n <= 0 {
		return end, nil
	}
	// The line break that ends the last line does not begin another.
	limit := end - 1
	block := make([]byte, logBlock)
	for end > first {
		begin := max(first, end-logBlock)
		part := block[:end-begin]
		if _, err := f.ReadAt(part, begin); err != nil && err != io.EOF {
			return 0, err
		}
		for i := len(part) - 1; i >= 0; i-- {
			if part[i] == '\n' && begin+int64(i) < limit {
				if n--; n == 0 {
					return begin + int64(i) + 1, nil
				}
			}
		}
		end = begin
	}
	return first, nil
}

// toTheEnd, for copyLog, is all there is, however long it has become meanwhile.
const toTheEnd = math.MaxInt64

// copyLog writes what the log has from offset up to end and returns where it
// ended. What was cut off meanwhile is skipped.
func copyLog(w io.Writer, f *os.File, offset, end int64) (int64, error) {
	block := make([]byte, logBlock)
	for offset < end {
		start, err := logStart(f, offset)
		if err != nil {
			return offset, err
		}
		if offset = start; offset >= end {
			break
		}
		n, err := f.ReadAt(block[:min(logBlock, end-offset)], offset)
		// A hole that opened during the read left zero bytes in the block. Holes begin
		// at the log's begin: one that reaches into the block covers its first byte.
		if now, err := logStart(f, offset); err != nil {
			return offset, err
		} else if now != offset {
			continue
		}
		// Of a full block only whole lines are written, so that one that loses its
		// other half to a hole is not joined with what follows the hole.
		if i := bytes.LastIndexByte(block[:n], '\n'); n == logBlock && i >= 0 {
			n = i + 1
		}
		if n > 0 {
			if _, err := w.Write(block[:n]); err != nil {
				return offset, err
			}
			offset += int64(n)
		}
		if err == io.EOF || n == 0 && err == nil {
			return offset, nil
		}
		if err != nil {
			return offset, fmt.Errorf("cannot read the log: %w", err)
		}
	}
	return offset, nil
}

// unlinked tells whether the file is gone from its directory.
func unlinked(f *os.File) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, err
	}
	return st.Nlink == 0, nil
}
