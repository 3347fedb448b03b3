package file

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"slices"
)

// bbolt trusts the pages of its file. On most damage it panics, and transact turns
// that into an error. This check is for the damage that no caller could notice:
//
//   - A branch page that leads back to itself. bbolt follows it until the stack
//     overflows, which ends the process; that cannot be caught.
//   - A page in use that is also listed as free, or that lies within the length of
//     another page, or a leaf whose first key is not the one that its branch has for
//     it. bbolt would overwrite such a page silently.
//   - Keys that are out of order. A key that is there would not be found, and its
//     request would run again.
//
// So Open checks that every page is in use only once and that all keys are in order.
// It does not check values, because those have checksums. bbolt's own Tx.Check is
// no help: it calls itself for each page that a branch leads to, so that a branch
// which leads back to itself would end the process here too.
//
// The layout is that of bbolt's internal/common, version 2, in the byte order of
// the machine.
const (
	pageHeaderSize = 16 // id 8, flags 2, count 2, overflow 4
	// of a branch: position 4, key size 4, page 8;
	// of a leaf: flags 4, position 4, key size 4, value size 4
	elementSize = 16

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10

	bucketElement = 0x01
	bucketSize    = 16 // root page 8, sequence 8

	metaMagic  = 0xED0CDAED
	noFreelist = ^uint64(0)
	longestKey = 32768
	// deepest is a depth that no tree reaches, however large the file is.
	deepest = 40
	// leavesChecked is how many leaf pages are read, so that opening a large file
	// does not take long: 256 MiB of them, in the order of the file. The check trusts
	// the rest.
	leavesChecked = 1 << 16
)

// structure is a file that is being checked.
type structure struct {
	file     io.ReaderAt
	pageSize int64
	// end is the number of the first page after the last one.
	end uint64
	// met says of each page whether something refers to it.
	met []bool
	// leaves are the leaf pages to which branches lead.
	leaves []leaf
}

// leaf is a page as its branch describes it: with the first key in it, and with the
// first key after it (beyond). Each of them is nil if no branch has it.
type leaf struct {
	page          uint64
	first, beyond []byte
}

// checkStructure checks a file that bbolt has opened. lostMeta reports whether one of
// the two meta pages is damaged. bbolt then takes the other one. After a crash
// during the last write that is right; otherwise the last write is lost. The error
// says what is wrong; the caller adds the name of the file.
func checkStructure(file *os.File, pageSize int64) (lostMeta bool, err error) {
	s := &structure{file: file, pageSize: pageSize}
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
	s.met = make([]bool, s.end)
	if freelist != noFreelist {
		if err := s.readFreelist(freelist); err != nil {
			return false, err
		}
	}
	if err := s.walk(root, s.walkBuckets); err != nil {
		return false, err
	}
	return lostMeta, s.readLeaves()
}

// readMeta reads the meta page that bbolt uses: the latest one with a right checksum.
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

// meet notes that something refers to a page. If something else does too, the page
// is in two places at once, and that is an error.
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

// header is the beginning of a page.
type header struct {
	kind  uint16
	count int
	// overflow is how many of the next pages belong to this one.
	overflow uint64
}

func (s *structure) header(page uint64) (header, error) {
	var raw [pageHeaderSize]byte
	if _, err := s.file.ReadAt(raw[:], int64(page)*s.pageSize); err != nil {
		return header{}, err
	}
	if id := binary.NativeEndian.Uint64(raw[:]); id != page {
		return header{}, fmt.Errorf("page %d says that it is page %d", page, id)
	}
	h := header{
		kind:     binary.NativeEndian.Uint16(raw[8:]),
		count:    int(binary.NativeEndian.Uint16(raw[10:])),
		overflow: uint64(binary.NativeEndian.Uint32(raw[12:])),
	}
	if page+h.overflow >= s.end {
		return header{}, fmt.Errorf("page %d goes on over %d pages, beyond the end", page, h.overflow)
	}
	return h, nil
}

// whole reads a page of the given kind, with all the pages that belong to it.
func (s *structure) whole(page uint64, want uint16) (content []byte, h header, err error) {
	h, err = s.header(page)
	if err != nil {
		return nil, h, err
	}
	if h.kind != want {
		return nil, h, fmt.Errorf("page %d is of kind %#x, where %#x is expected", page, h.kind, want)
	}
	content = make([]byte, int64(1+h.overflow)*s.pageSize)
	_, err = s.file.ReadAt(content, int64(page)*s.pageSize)
	return content, h, err
}

// meetOverflow notes the next pages that belong to a page.
func (s *structure) meetOverflow(page uint64, h header) error {
	for n := range h.overflow {
		if err := s.meet(page + 1 + n); err != nil {
			return err
		}
	}
	return nil
}

// readLeaves checks the leaf pages to which the branches lead.
func (s *structure) readLeaves() error {
	slices.SortFunc(s.leaves, func(a, b leaf) int { return cmp.Compare(a.page, b.page) })
	buffer := make([]byte, s.pageSize)
	for _, l := range s.leaves[:min(len(s.leaves), leavesChecked)] {
		if err := s.readLeaf(l, buffer); err != nil {
			return err
		}
	}
	return nil
}

func (s *structure) readLeaf(l leaf, buffer []byte) error {
	h, err := s.header(l.page)
	if err != nil {
		return err
	}
	if h.kind != leafPage {
		return fmt.Errorf("page %d is of kind %#x, where %#x is expected", l.page, h.kind, leafPage)
	}
	if err := s.meetOverflow(l.page, h); err != nil {
		return err
	}
	if _, err := s.file.ReadAt(buffer, int64(l.page)*s.pageSize); err != nil {
		return err
	}
	if pageHeaderSize+h.count*elementSize > len(buffer) || h.count == 0 && l.first != nil {
		return fmt.Errorf("leaf page %d has %d elements", l.page, h.count)
	}
	disorder := fmt.Errorf("the keys of leaf page %d are out of order", l.page)
	var before []byte
	for i := range h.count {
		at := pageHeaderSize + i*elementSize
		from := at + int(binary.NativeEndian.Uint32(buffer[at+4:]))
		size := int(binary.NativeEndian.Uint32(buffer[at+8:]))
		if size > longestKey || from+size > int(1+h.overflow)*len(buffer) {
			return disorder
		}
		key := make([]byte, size)
		if from+size <= len(buffer) {
			copy(key, buffer[from:])
		} else if _, err := s.file.ReadAt(key, int64(l.page)*s.pageSize+int64(from)); err != nil {
			return err
		}
		if i == 0 && l.first != nil && !bytes.Equal(key, l.first) || i > 0 && bytes.Compare(before, key) >= 0 {
			return disorder
		}
		before = key
	}
	if l.beyond != nil && bytes.Compare(before, l.beyond) >= 0 {
		return disorder
	}
	return nil
}

func (s *structure) readFreelist(page uint64) error {
	if err := s.meet(page); err != nil {
		return err
	}
	content, h, err := s.whole(page, freelistPage)
	if err != nil {
		return err
	}
	if err := s.meetOverflow(page, h); err != nil {
		return err
	}
	count := h.count
	ids := content[pageHeaderSize:]
	if count == 0xffff { // there are more than two bytes can count; 8 bytes in front say how many
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

// walk meets all pages of a tree, and calls visit, if it is set, with each leaf page.
// First it goes down to one leaf: all leaves of a tree are equally deep, so this
// says how deep descend may go, and no circle can keep it.
func (s *structure) walk(root uint64, visit func(page uint64) error) error {
	depth := 0
	for page := root; ; depth++ {
		h, err := s.header(page)
		if err != nil {
			return err
		}
		if h.kind == leafPage {
			break
		}
		content, _, err := s.whole(page, branchPage)
		if err != nil {
			return err
		}
		if h.count == 0 || depth == deepest {
			return fmt.Errorf("branch page %d leads to no leaf", page)
		}
		page = binary.NativeEndian.Uint64(content[pageHeaderSize+8:])
		if page >= s.end {
			return fmt.Errorf("it refers to page %d, and its pages are 2 to %d", page, s.end-1)
		}
	}
	return s.descend(leaf{page: root}, depth, visit)
}

// descend meets a page and all pages below it, down to the leaves at this depth.
func (s *structure) descend(l leaf, depth int, visit func(page uint64) error) error {
	if err := s.meet(l.page); err != nil {
		return err
	}
	if depth == 0 {
		s.leaves = append(s.leaves, l)
		if visit == nil {
			return nil
		}
		return visit(l.page)
	}
	content, h, err := s.whole(l.page, branchPage)
	if err != nil {
		return err
	}
	if err := s.meetOverflow(l.page, h); err != nil {
		return err
	}
	if h.count == 0 || pageHeaderSize+h.count*elementSize > len(content) {
		return fmt.Errorf("branch page %d has %d elements in %d bytes", l.page, h.count, len(content))
	}
	disorder := fmt.Errorf("the keys of branch page %d are out of order", l.page)
	below := make([]leaf, h.count)
	for i := range below {
		at := pageHeaderSize + i*elementSize
		from := at + int(binary.NativeEndian.Uint32(content[at:]))
		to := from + int(binary.NativeEndian.Uint32(content[at+4:]))
		if to > len(content) {
			return disorder
		}
		below[i] = leaf{binary.NativeEndian.Uint64(content[at+8:]), content[from:to], l.beyond}
		if i > 0 {
			below[i-1].beyond = below[i].first
			if bytes.Compare(below[i-1].first, below[i].first) >= 0 {
				return disorder
			}
		}
	}
	if l.first != nil && !bytes.Equal(l.first, below[0].first) || l.beyond != nil && bytes.Compare(below[h.count-1].first, l.beyond) >= 0 {
		return disorder
	}
	for _, child := range below {
		if err := s.descend(child, depth-1, visit); err != nil {
			return err
		}
	}
	return nil
}

// walkBuckets walks through the tree of each bucket that is named in a leaf page.
func (s *structure) walkBuckets(page uint64) error {
	content, h, err := s.whole(page, leafPage)
	if err != nil {
		return err
	}
	count := h.count
	if pageHeaderSize+count*elementSize > len(content) {
		return fmt.Errorf("leaf page %d has %d elements in %d bytes", page, count, len(content))
	}
	for i := range count {
		at := pageHeaderSize + i*elementSize
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
		// A small bucket lies in the element itself, and its page is 0.
		if root := binary.NativeEndian.Uint64(content[from:]); root != 0 {
			if err := s.walk(root, nil); err != nil {
				return err
			}
		}
	}
	return nil
}
