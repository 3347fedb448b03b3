package memory

import "github.com/caddy-dedup/caddy-dedup/internal/idempotency"

// index finds the item of a key. It is a tree over the digits of the keys, with nodes
// for as many digits as it takes to tell the keys apart. So it grows and shrinks by one
// key at a time, with little work for each, and has no pointers.
//
// The first byte of a key chooses one of 256 trees, so that [Store.List] sorts the keys
// of one at a time. Then come the digits of the part that is different for each scope,
// because keys of the same ID have the rest in common.
type index struct {
	// roots and the slots of nodes are references: 0 for nothing, the number of an item,
	// or the number of a node with isNode.
	roots [trees]uint32
	nodes table[node]
	keyOf func(item uint32) *idempotency.Key
}

type node [16]uint32

const (
	trees     = 256
	isNode    = 1 << 31
	keySize   = len(idempotency.Key{})
	scopeFrom = len(idempotency.Beginning{})
	digits    = 2 * (keySize - 1)
)

// digit returns one of the digits behind the first byte, in the order of the tree.
func digit(key *idempotency.Key, n int) byte {
	at := scopeFrom + n/2
	if at >= keySize {
		at -= keySize - 1
	}
	if n%2 == 0 {
		return key[at] >> 4
	}
	return key[at] & 0xf
}

// descend returns the reference at which the way to the key ends, and at which digit.
func (x *index) descend(key *idempotency.Key) (*uint32, int) {
	ref, depth := &x.roots[key[0]], 0
	for *ref&isNode != 0 {
		ref = &x.nodes.at(*ref &^ isNode)[digit(key, depth)]
		depth++
	}
	return ref, depth
}

// find returns the item of the key, 0 if there is none.
func (x *index) find(key *idempotency.Key) uint32 {
	ref, _ := x.descend(key)
	if *ref == 0 || *x.keyOf(*ref) != *key {
		return 0
	}
	return *ref
}

// nodesFor returns how many nodes more it takes to insert the key, which is not there.
func (x *index) nodesFor(key *idempotency.Key) int {
	ref, depth := x.descend(key)
	if *ref == 0 {
		return 0
	}
	other := x.keyOf(*ref)
	n := 1
	for ; digit(key, depth) == digit(other, depth); depth++ {
		n++
	}
	return n
}

// insert adds a key that is not there. There must be room for its nodes.
func (x *index) insert(key *idempotency.Key, item uint32) {
	ref, depth := x.descend(key)
	for other := *ref; other != 0; depth++ {
		number := x.nodes.add()
		n := x.nodes.at(number)
		*ref = number | isNode
		theirs, ours := digit(x.keyOf(other), depth), digit(key, depth)
		ref = &n[ours]
		if theirs != ours {
			n[theirs] = other
			break
		}
	}
	*ref = item
}

// remove takes out a key that is there, and the nodes that are not needed any more.
func (x *index) remove(key *idempotency.Key) {
	var way [digits + 1]*uint32
	ref, depth := &x.roots[key[0]], 0
	for ; *ref&isNode != 0; depth++ {
		way[depth] = ref
		ref = &x.nodes.at(*ref &^ isNode)[digit(key, depth)]
	}
	*ref = 0
	for depth--; depth >= 0; depth-- {
		only, more := x.nodes.at(*way[depth] &^ isNode).only()
		if more || only&isNode != 0 {
			return
		}
		x.nodes.remove(*way[depth] &^ isNode)
		*way[depth] = only
	}
}

// only returns the only reference of a node, 0 if it has none.
func (n *node) only() (only uint32, more bool) {
	for _, ref := range n {
		if ref == 0 {
			continue
		}
		if only != 0 {
			return 0, true
		}
		only = ref
	}
	return only, false
}

// each calls f with all items of the keys with this first byte.
func (x *index) each(first byte, f func(item uint32)) { x.walk(x.roots[first], f) }

func (x *index) walk(ref uint32, f func(item uint32)) {
	switch {
	case ref == 0:
	case ref&isNode == 0:
		f(ref)
	default:
		for _, below := range x.nodes.at(ref &^ isNode) {
			x.walk(below, f)
		}
	}
}
