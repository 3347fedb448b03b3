package file

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// bbolt trusts the pages it finds. Most damage makes it panic, which is caught;
// but a branch that leads back to itself overflows the stack, which ends the
// process, and a page in use that is also listed as free is overwritten
// silently. So the paths through the file are checked once when it is opened:
// only its branches are read and not its leaves, about one page in eighty.
//
// The layout is that of bbolt's internal/common, version 2, in the byte order
// of the machine.
const (
	pageHeaderSize = 16 // id 8, flags 2, count 2, overflow 4
	elementSize    = 16 // of a branch: position 4, key size 4, page 8
	leafSize       = 16 // of a leaf: flags 4, position 4, key size 4, value size 4

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10

	bucketElement = 0x01
	bucketSize    = 16 // root page 8, sequence 8

	metaMagic  = 0xED0CDAED
	noFreelist = ^uint64(0)
	// deepest is more than a file of any size reaches.
	deepest = 40
)

// structure is a file under inspection.
type structure struct {
	file     io.ReaderAt
	pageSize int64
	// end is the first page number that is not in use.
	end uint64
	// met are the pages that are free or that a branch has led to.
	met map[uint64]bool
}

// checkStructure checks a file that bbolt has accepted. It reports whether one
// of the two meta pages is damaged: bbolt then goes on from the other, which is
// right after a crash within the last write, and lost that write otherwise. The
// error says what is wrong, for a sentence that names the file.
func checkStructure(file *os.File, pageSize int64) (lostMeta bool, err error) {
	s := &structure{file: file, pageSize: pageSize, met: make(map[uint64]bool)}
	root, freelist, lostMeta, err := s.readMeta()
	if err != nil {
		return false, err
	}
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	if want := int64(s.end) * pageSize; info.Size() < want {
		return false, fmt.Errorf("it has %d bytes and must have %d: its end is cut off", info.Size(), want)
	}
	if freelist != noFreelist {
		if err := s.readFreelist(freelist); err != nil {
			return false, err
		}
	}
	return lostMeta, s.walk(root, s.walkBuckets)
}

// readMeta chooses the meta page that bbolt chooses: the latest whole one.
func (s *structure) readMeta() (root, freelist uint64, lost bool, err error) {
	var latest uint64
	whole := 0
	for n := range int64(2) {
		meta := make([]byte, 64)
		if _, err := s.file.ReadAt(meta, n*s.pageSize+pageHeaderSize); err != nil {
			return 0, 0, false, err
		}
		sum := fnv.New64a()
		_, _ = sum.Write(meta[:56])
		if binary.NativeEndian.Uint32(meta) != metaMagic || sum.Sum64() != binary.NativeEndian.Uint64(meta[56:]) {
			continue
		}
		whole++
		if transaction := binary.NativeEndian.Uint64(meta[48:]); whole == 1 || transaction > latest {
			latest = transaction
			root, freelist, s.end = binary.NativeEndian.Uint64(meta[16:]), binary.NativeEndian.Uint64(meta[32:]), binary.NativeEndian.Uint64(meta[40:])
		}
	}
	if whole == 0 {
		return 0, 0, false, errors.New("neither of its two meta pages is whole")
	}
	return root, freelist, whole == 1, nil
}

// meet notes a page, and refuses one that was met before: it would be in two
// places at once.
func (s *structure) meet(page uint64) error {
	switch {
	case page < 2 || page >= s.end:
		return fmt.Errorf("it refers to page %d, and its pages are 2 to %d", page, s.end-1)
	case s.met[page]:
		return fmt.Errorf("page %d is referred to twice", page)
	}
	s.met[page] = true
	return nil
}

// header reads the first bytes of a page and returns its kind, its number of
// elements and its whole length.
func (s *structure) header(page uint64) (kind uint16, count int, length int64, err error) {
	header := make([]byte, pageHeaderSize)
	if _, err := s.file.ReadAt(header, int64(page)*s.pageSize); err != nil {
		return 0, 0, 0, err
	}
	if id := binary.NativeEndian.Uint64(header); id != page {
		return 0, 0, 0, fmt.Errorf("page %d says that it is page %d", page, id)
	}
	overflow := uint64(binary.NativeEndian.Uint32(header[12:]))
	if page+overflow >= s.end {
		return 0, 0, 0, fmt.Errorf("page %d goes on over %d pages, beyond the end", page, overflow)
	}
	return binary.NativeEndian.Uint16(header[8:]), int(binary.NativeEndian.Uint16(header[10:])), int64(1+overflow) * s.pageSize, nil
}

// page reads a whole page that must be of the given kind.
func (s *structure) page(page uint64, want uint16) (content []byte, count int, err error) {
	kind, count, length, err := s.header(page)
	if err != nil {
		return nil, 0, err
	}
	if kind != want {
		return nil, 0, fmt.Errorf("page %d is of kind %#x, where %#x is expected", page, kind, want)
	}
	content = make([]byte, length)
	_, err = s.file.ReadAt(content, int64(page)*s.pageSize)
	return content, count, err
}

func (s *structure) readFreelist(page uint64) error {
	if err := s.meet(page); err != nil {
		return err
	}
	content, count, err := s.page(page, freelistPage)
	if err != nil {
		return err
	}
	ids := content[pageHeaderSize:]
	if count == 0xffff { // too many for two bytes: the number comes first
		count = int(min(binary.NativeEndian.Uint64(ids), uint64(len(content))))
		ids = ids[8:]
	}
	if count > len(ids)/8 {
		return fmt.Errorf("the list of free pages has %d entries in %d bytes", count, len(ids))
	}
	for i := range count {
		if err := s.meet(binary.NativeEndian.Uint64(ids[8*i:])); err != nil {
			return fmt.Errorf("the list of free pages: %w", err)
		}
	}
	return nil
}

// walk meets all pages of a tree, and calls leaf, if set, with its leaves. All
// leaves of a tree are equally deep, so that the first tells where they are.
func (s *structure) walk(root uint64, leaf func(page uint64) error) error {
	depth := 0
	for page := root; ; depth++ {
		kind, _, _, err := s.header(page)
		if err != nil {
			return err
		}
		if kind == leafPage {
			break
		}
		content, count, err := s.page(page, branchPage)
		if err != nil {
			return err
		}
		if count == 0 || depth == deepest {
			return fmt.Errorf("branch page %d leads to no leaf", page)
		}
		page = binary.NativeEndian.Uint64(content[pageHeaderSize+8:])
		if page >= s.end {
			return fmt.Errorf("it refers to page %d, and its pages are 2 to %d", page, s.end-1)
		}
	}
	return s.descend(root, depth, leaf)
}

func (s *structure) descend(page uint64, depth int, leaf func(page uint64) error) error {
	if err := s.meet(page); err != nil {
		return err
	}
	if depth == 0 {
		if leaf == nil {
			return nil
		}
		return leaf(page)
	}
	content, count, err := s.page(page, branchPage)
	if err != nil {
		return err
	}
	if count == 0 || pageHeaderSize+count*elementSize > len(content) {
		return fmt.Errorf("branch page %d has %d elements in %d bytes", page, count, len(content))
	}
	var before []byte
	for i := range count {
		at := pageHeaderSize + i*elementSize
		element := content[at:]
		from := at + int(binary.NativeEndian.Uint32(element))
		to := from + int(binary.NativeEndian.Uint32(element[4:]))
		if to > len(content) || i > 0 && bytes.Compare(before, content[from:to]) >= 0 {
			return fmt.Errorf("the keys of branch page %d are out of order", page)
		}
		before = content[from:to]
		if err := s.descend(binary.NativeEndian.Uint64(element[8:]), depth-1, leaf); err != nil {
			return err
		}
	}
	return nil
}

// walkBuckets walks through the trees of the buckets that a leaf names.
func (s *structure) walkBuckets(page uint64) error {
	content, count, err := s.page(page, leafPage)
	if err != nil {
		return err
	}
	if pageHeaderSize+count*leafSize > len(content) {
		return fmt.Errorf("leaf page %d has %d elements in %d bytes", page, count, len(content))
	}
	for i := range count {
		at := pageHeaderSize + i*leafSize
		element := content[at:]
		from := at + int(binary.NativeEndian.Uint32(element[4:])) + int(binary.NativeEndian.Uint32(element[8:]))
		size := int(binary.NativeEndian.Uint32(element[12:]))
		if from+size > len(content) {
			return fmt.Errorf("an element of leaf page %d lies beyond its end", page)
		}
		if binary.NativeEndian.Uint32(element)&bucketElement == 0 {
			continue
		}
		if size < bucketSize {
			return fmt.Errorf("a bucket of leaf page %d has %d bytes", page, size)
		}
		// Page 0 stands for a small bucket that lies in the element itself.
		if root := binary.NativeEndian.Uint64(content[from:]); root != 0 {
			if err := s.walk(root, nil); err != nil {
				return err
			}
		}
	}
	return nil
}
