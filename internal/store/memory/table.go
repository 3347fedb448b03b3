package memory

import (
	"math/bits"
	"unsafe"
)

// table holds values of one type without pointers, in pages, so that the garbage
// collector has a few pages to look at and not each value. A value has a number, from 1
// on, for as long as it is there. A page in which nothing is left is given back.
type table[T any] struct {
	pages []page[T]
	// dropped are the numbers of pages that were given back.
	dropped []uint32
	// roomy is the first of a list of the pages with room, as the number plus 1.
	roomy uint32
	// free is how many values fit into the pages that there are.
	free int
	// bytes is what the pages take.
	bytes int64
}

// pageSlots is how many values a page has. The pages are then of sizes that Go's
// allocator has without waste.
const pageSlots = 128

type page[T any] struct {
	slots *[pageSlots]T
	// free has a bit for each slot without a value.
	free [pageSlots / 64]uint64
	used int
	// before and after are the neighbours in the list of the pages with room, as their
	// numbers plus 1.
	before, after uint32
}

func (t *table[T]) pageBytes() int64 {
	return int64(unsafe.Sizeof(page[T]{}) + unsafe.Sizeof([pageSlots]T{}))
}

// at returns the value with the number. It may be changed in place.
func (t *table[T]) at(n uint32) *T {
	return &t.pages[(n-1)/pageSlots].slots[(n-1)%pageSlots]
}

// reserve makes sure that there is room for n values, and reports whether it could do
// that with at most so many bytes more.
func (t *table[T]) reserve(n int, budget int64) bool {
	for t.free < n {
		if budget -= t.pageBytes(); budget < 0 {
			return false
		}
		t.addPage()
	}
	return true
}

func (t *table[T]) addPage() {
	fresh := page[T]{slots: new([pageSlots]T)}
	for i := range fresh.free {
		fresh.free[i] = ^uint64(0)
	}
	var number uint32
	if last := len(t.dropped) - 1; last >= 0 {
		number, t.dropped = t.dropped[last], t.dropped[:last]
		t.pages[number] = fresh
	} else {
		number = uint32(len(t.pages))
		t.pages = append(t.pages, fresh)
	}
	t.free += pageSlots
	t.bytes += t.pageBytes()
	t.linkRoomy(number)
}

// add returns the number of a new value, which is zero. There must be room.
func (t *table[T]) add() uint32 {
	number := t.roomy - 1
	p := &t.pages[number]
	slot := 0
	for i, free := range p.free {
		if free != 0 {
			slot = i*64 + bits.TrailingZeros64(free)
			p.free[i] &= free - 1
			break
		}
	}
	p.used++
	t.free--
	if p.used == pageSlots {
		t.unlinkRoomy(number)
	}
	var zero T
	p.slots[slot] = zero
	return number*pageSlots + uint32(slot) + 1
}

// remove takes the value with the number out.
func (t *table[T]) remove(n uint32) {
	number, slot := (n-1)/pageSlots, (n-1)%pageSlots
	p := &t.pages[number]
	p.free[slot/64] |= 1 << (slot % 64)
	p.used--
	t.free++
	if p.used == pageSlots-1 {
		t.linkRoomy(number)
	}
	// The last page stays: a store with one key now and then is not to allocate each
	// time.
	if p.used == 0 && t.free > pageSlots {
		t.unlinkRoomy(number)
		t.pages[number] = page[T]{}
		t.dropped = append(t.dropped, number)
		t.free -= pageSlots
		t.bytes -= t.pageBytes()
	}
}

func (t *table[T]) linkRoomy(number uint32) {
	p := &t.pages[number]
	p.before, p.after = 0, t.roomy
	if t.roomy != 0 {
		t.pages[t.roomy-1].before = number + 1
	}
	t.roomy = number + 1
}

func (t *table[T]) unlinkRoomy(number uint32) {
	p := &t.pages[number]
	if p.before != 0 {
		t.pages[p.before-1].after = p.after
	} else {
		t.roomy = p.after
	}
	if p.after != 0 {
		t.pages[p.after-1].before = p.before
	}
}
