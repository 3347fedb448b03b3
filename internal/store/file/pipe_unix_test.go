//go:build unix

package file

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Whoever opens a pipe waits until somebody writes to it.
func TestPipeInTheStoresPlaceIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(path, os.O_RDWR, 0) // so that a test that fails does not wait
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	refused(t, path, "is no directory", "left as it is", "another path")
}
