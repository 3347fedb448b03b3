package servers

import (
	"os"
	"syscall"
)

// blocksOf is the room that a file takes: a log that is made in advance, or one with
// holes, has another size.
func blocksOf(info os.FileInfo) int64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Blocks * 512
	}
	return info.Size()
}

// InMemory says whether a directory is in a file system that has no disk.
func InMemory(dir string) bool {
	const tmpfs, ramfs = 0x01021994, 0x858458f6
	var fs syscall.Statfs_t
	return syscall.Statfs(dir, &fs) == nil && (uint32(fs.Type) == tmpfs || uint32(fs.Type) == ramfs)
}
