package file

import (
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// dropCached has the system forget the pages of a body that was flushed. Most bodies are
// never read, and the next one then gets the same pages. In a virtual machine, pages
// that are new to it can cost more than all else of the write.
func dropCached(f vfs.File, at bodyPlace) {
	if fd := f.Fd(); fd != vfs.InvalidFd {
		_ = unix.Fadvise(int(fd), at.at, int64(at.length), unix.FADV_DONTNEED) //nolint:gosec // it is the size of a slice; it is only advice
	}
}

// giveBack makes a hole where a body was.
func giveBack(f vfs.File, at bodyPlace) error {
	fd := f.Fd()
	if fd == vfs.InvalidFd {
		return nil
	}
	length := int64(at.length) //nolint:gosec // it is the size of a slice
	return unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at.at, wholeBlocks(length))
}

// giveBackRemoved gives back the room of a file that was removed while it was open. It takes
// up to that of a whole segment for as long as somebody writes to it, and he may be waiting for
// room. Nobody acknowledges what is in it. A file that was only moved has a name, and stays.
func giveBackRemoved(f vfs.File) {
	fd := f.Fd()
	if fd == vfs.InvalidFd {
		return
	}
	var info unix.Stat_t
	if unix.Fstat(int(fd), &info) == nil && info.Nlink == 0 {
		_ = unix.Ftruncate(int(fd), 0) // else it is given back when the file is closed
	}
}

// openDirect opens a file once more, to write past the cache of the system. Not all file
// systems can do so: it returns nil then.
func openDirect(f vfs.File, name string) *os.File {
	if f.Fd() == vfs.InvalidFd {
		return nil
	}
	direct, err := os.OpenFile(name, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil
	}
	return direct
}
