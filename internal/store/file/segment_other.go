//go:build !linux

package file

import (
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// dropCached does nothing: other systems take no such advice, or none by this name.
func dropCached(vfs.File, bodyPlace) {}

// giveBack does nothing: the room of a body is given back with its bucket.
func giveBack(vfs.File, bodyPlace) error { return nil }

// giveBackRemoved does nothing: the room of a removed file is given back when it is closed.
func giveBackRemoved(vfs.File) {}

// openDirect returns nil: other systems have no such way, or another one.
func openDirect(vfs.File, string) *os.File { return nil }
