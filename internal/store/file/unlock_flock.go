//go:build unix && !aix && !solaris

package file

import (
	"os"
	"syscall"
)

// unlock unlocks a file that bbolt cannot close any more. Closing the file is not
// enough: the memory map keeps the file open, and the file stays locked.
func unlock(file *os.File) { _ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN) }
