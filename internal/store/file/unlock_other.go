//go:build !unix || aix || solaris

package file

import "os"

// unlock does nothing: on these systems, closing the file unlocks it.
func unlock(*os.File) {}
