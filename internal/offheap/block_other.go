//go:build !unix

package offheap

// mapBlock takes a block from the heap: on this system there is no other way that is worth
// its code. All is then as it would be without this package.
func mapBlock() ([]byte, error) { return make([]byte, BlockSize), nil }

func unmapBlock([]byte) {}
