package file

import (
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// dropCached has the system forget the pages of a file that was flushed. Most bodies are
// never read, and the next one then gets the same pages. In a virtual machine, pages
// that are new to it can cost more than all else of the write.
func dropCached(f vfs.File) {
	if fd := f.Fd(); fd != vfs.InvalidFd {
		_ = unix.Fadvise(int(fd), 0, 0, unix.FADV_DONTNEED) // it is only advice
	}
}
