package memory

// blocks stores byte strings, each in a chain of blocks. Any free block can be part of any string, so
// strings never move.
type blocks struct {
	pages []*[pageBlocks]block
	free  uint32 // first of the chain of free blocks
	used  int64  // number of blocks in use
}

const pageBlocks = 512

// block is a part of a string. Blocks are numbered from 1 on.
type block struct {
	bytes [124]byte
	next  uint32 // 0 in the last one
}

func (b *blocks) at(n uint32) *block { return &b.pages[n/pageBlocks][n%pageBlocks] }

// add copies a string into blocks and returns the number of the first, 0 for an empty string.
func (b *blocks) add(bytes []byte) (first uint32) {
	for link := &first; len(bytes) > 0; {
		if b.free == 0 {
			b.addPage()
		}
		*link = b.free
		to := b.at(*link)
		b.free, to.next = to.next, 0
		b.used++
		bytes = bytes[copy(to.bytes[:], bytes):]
		link = &to.next
	}
	return first
}

func (b *blocks) addPage() {
	first := uint32(len(b.pages) * pageBlocks)
	b.pages = append(b.pages, new([pageBlocks]block))
	for n := first + pageBlocks - 1; n >= max(first, 1); n-- {
		b.at(n).next, b.free = b.free, n
	}
}

// read appends the string of this size in the chain to dst.
func (b *blocks) read(dst []byte, first, size uint32) []byte {
	for end := len(dst) + int(size); len(dst) < end; {
		from := b.at(first)
		dst = append(dst, from.bytes[:min(len(from.bytes), end-len(dst))]...)
		first = from.next
	}
	return dst
}

// remove frees the blocks of a chain.
func (b *blocks) remove(first uint32) {
	for first != 0 {
		at := b.at(first)
		next := at.next
		at.next, b.free = b.free, first
		b.used--
		first = next
	}
	if b.used == 0 {
		*b = blocks{}
	}
}
