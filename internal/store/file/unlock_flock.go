//go:build unix && !aix && !solaris

package file

import (
	"os"
	"syscall"
)

// unlock frees the lock of a file that bbolt cannot close any more. Closing the
// file would not do: its memory map keeps it open, and with it the lock.
func unlock(file *os.File) { _ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN) }
