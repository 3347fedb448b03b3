//go:build !unix || aix || solaris

package file

import "os"

// unlock leaves it to the closing of the file: locks are of another kind here.
func unlock(*os.File) {}
