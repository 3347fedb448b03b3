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

// bbolt trusts the pages it finds. Most damage makes it panic, which is caught.
// But a branch that leads back to itself overflows the stack, which ends the
// process; and a page in use is overwritten silently where it is listed as free
// too, where another page's length covers it, or where the first key of a leaf
// is not the one by which its branch knows it. A damaged key is not found, and
// runs again. So it is checked, when the file is opened, that every page has one
// place and that all keys are in order (keys only: what belongs to them has
// checksums).
//
// The layout is that of bbolt's internal/common, version 2, in the byte order
// of the machine.
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
	// deepest is more than a file of any size reaches.
	deepest = 40
	// leavesChecked bounds what opening a file may cost: leaves of 256 MiB, read
	// in the order in which they lie there. The rest is trusted.
	leavesChecked = 1 << 16
)

// structure is a file under inspection.
type structure struct {
	file     io.ReaderAt
	pageSize int64
	// end is the first page number that is not in use.
	end uint64
	// met are the pages whose place is known.
	met []bool
	// leaves are those that the branches lead to.
	leaves []leaf
}

// leaf is a page of keys, as its branch knows it: by its first key, and by the
// first that is beyond it. Either is nil where no branch says so.
type leaf struct {
	page          uint64
	first, beyond []byte
}

// checkStructure checks a file that bbolt has accepted. It reports whether one
// of the two meta pages is damaged: bbolt then goes on from the other, which is
// right after a crash within the last write, and lost that write otherwise. The
// error says what is wrong, for a sentence that names the file.
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

// header is how a page begins.
type header struct {
	kind  uint16
	count int
	// overflow is how many pages it goes on over.
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

// whole reads a page that must be of the given kind, to its end.
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

// meetOverflow notes the pages that a page goes on over.
func (s *structure) meetOverflow(page uint64, h header) error {
	for n := range h.overflow {
		if err := s.meet(page + 1 + n); err != nil {
			return err
		}
	}
	return nil
}

// readLeaves checks the leaves that the branches lead to.
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

// walk meets all pages of a tree, and calls visit, if set, with its leaves. All
// leaves of a tree are equally deep, so that the first tells where they are.
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

// descend meets the pages below one that its branch knows by those keys.
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

// walkBuckets walks through the trees of the buckets that a leaf names.
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
		// Page 0 stands for a small bucket that lies in the element itself.
		if root := binary.NativeEndian.Uint64(content[from:]); root != 0 {
			if err := s.walk(root, nil); err != nil {
				return err
			}
		}
	}
	return nil
}
