//go:build !linux

package file

import "github.com/cockroachdb/pebble/v2/vfs"

// dropCached does nothing: other systems take no such advice, or none by this name.
func dropCached(vfs.File) {}
