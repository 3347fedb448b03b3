package file

import (
	"os"

	"golang.org/x/sys/unix"
)

// openDirect opens a file a second time, for writes that bypass the system's cache: a body is rarely
// read soon, because local copies answer its duplicates. It returns nil if the file system does not
// support that.
func openDirect(name string) *os.File {
	f, err := os.OpenFile(name, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil
	}
	return f
}
