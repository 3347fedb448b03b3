//go:build unix

package offheap

import "golang.org/x/sys/unix"

// mapBlock takes a block from the system. Its pages come as they are written to.
func mapBlock() ([]byte, error) {
	return unix.Mmap(-1, 0, BlockSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// unmapBlock gives a block back. What mapBlock has returned can always be given back.
func unmapBlock(block []byte) { _ = unix.Munmap(block) }
