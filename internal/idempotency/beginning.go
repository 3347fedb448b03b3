package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// Beginning is how all keys of one ID in one namespace begin. Keys of another ID
// begin in another way, but for a chance of 1 in 2^64.
type Beginning [idDigest]byte

// BeginningOf returns the beginning of the keys of an [Identity] with this namespace
// and this ID, whatever else is in it.
func BeginningOf(namespace, id string) Beginning {
	parts := make([]byte, 0, mostOnStack)
	parts = appendPart(parts, idVersion)
	parts = appendPart(parts, namespace)
	parts = appendPart(parts, id)
	digest := sha256.Sum256(parts)
	return Beginning(digest[:idDigest])
}

// Beginning returns how the key begins.
func (k Key) Beginning() Beginning { return Beginning(k[:idDigest]) }

// String returns the beginning in lower-case hex, as [Key.String] begins.
func (b Beginning) String() string { return hex.EncodeToString(b[:]) }

// SortBeginnings returns the beginnings in the order of the keys, each once.
func SortBeginnings(of []Beginning) []Beginning {
	of = slices.Clone(of)
	slices.SortFunc(of, func(a, b Beginning) int { return bytes.Compare(a[:], b[:]) })
	return slices.Compact(of)
}
