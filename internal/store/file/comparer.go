package file

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
)

// comparer is the order of the names in the database, which is that of their bytes, and
// says which part of a name is its prefix: what a filter of a table knows. That is the
// key for all that is stored of it, so that one entry in a filter answers whether a table
// has anything of the key, and the moment for the expiries, which nobody looks up.
//
// A database is opened only with the comparer by whose name it was made.
var comparer = func() *pebble.Comparer {
	c := *pebble.DefaultComparer
	c.Name = "caddy-dedup.names.1"
	c.Split = prefixSize
	c.ImmediateSuccessor = afterPrefix
	return &c
}()

// prefixSize returns how long the prefix of a name is. A name that is shorter than that
// is one to seek by, and nothing but a prefix.
func prefixSize(name []byte) int {
	if len(name) == 0 {
		return 0
	}
	switch name[0] {
	case dataTable:
		return min(len(name), 1+keySize)
	case expiryTable:
		return min(len(name), 1+momentSize)
	default:
		return len(name)
	}
}

// afterPrefix appends the first prefix that comes after one.
func afterPrefix(to, prefix []byte) []byte {
	longer := append(bytes.Clone(prefix), 0)
	if prefixSize(longer) == len(longer) {
		return append(to, longer...)
	}
	last := len(prefix) - 1
	for prefix[last] == 0xff { // the first byte is none: it is that of a table
		last--
	}
	to = append(to, prefix[:last+1]...)
	to[len(to)-1]++
	return to
}
