package redis

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// DefaultPrefix is the prefix of all names in Redis if Options.Prefix is empty.
const DefaultPrefix = "dedup:"

// maxPrefix is how many bytes a prefix may have: each name in Redis takes memory for it.
const maxPrefix = 100

// names makes the names of a store's Redis keys and channels. All have one prefix, so that one
// pattern of an access rule covers the keys, and another one the channels.
//
// A cluster hashes what is in braces: all names of a key are in one slot.
type names struct{ prefix string }

// record names the value of a key.
func (n names) record(key idempotency.Key) string {
	name := make([]byte, 0, maxPrefix+2+2*len(key)) // on the stack
	name = append(append(name, n.prefix...), '{')
	return string(append(hex.AppendEncode(name, key[:]), '}'))
}

// recordOf is record for a key in hex.
func (n names) recordOf(hex string) string { return n.prefix + "{" + hex + "}" }

// response names what is kept of one run beside the record.
func (n names) response(key idempotency.Key, token string) string {
	return n.record(key) + ":" + token
}

// unsettled names that until the run is settled. Each settlement has its own revision: a late
// command of an earlier one, perhaps sealed with another nonce, must not replace its body.
func (n names) unsettled(key idempotency.Key, token string, revision []byte) string {
	return n.response(key, token) + ":" + string(revision) + ":unsettled"
}

// inbox names the channel of one process.
func (n names) inbox(id string) string { return n.prefix + "inbox:" + id }

// copies names the channel for keys whose kept responses were removed or replaced.
func (n names) copies() string { return n.prefix + "copies" }

// records is a pattern of SCAN for all records, and for none of the responses.
func (n names) records() string { return n.prefix + "{*}" }

// beginning is a pattern of SCAN for the records whose keys have this beginning.
func (n names) beginning(b idempotency.KeyPrefix) string { return n.prefix + "{" + b.String() + "*}" }

// keyIn returns the key, in hex, of a record with this name. It is not ok for other names that
// match the pattern.
func (n names) keyIn(name string) (hex string, ok bool) {
	rest, ours := strings.CutPrefix(name, n.prefix+"{")
	hex, closed := strings.CutSuffix(rest, "}")
	if !ours || !closed {
		return "", false
	}
	key, err := idempotency.ParseKey(hex)
	return hex, err == nil && key.String() == hex
}

// CheckPrefix returns an error if a text is no prefix for [Options]. Braces would change the
// slots of a cluster, and * ? [ ] \ the patterns; a space would split a channel in the list of
// a record.
func CheckPrefix(prefix string) error {
	const accepted = "it takes printable characters but space, { } * ? [ ] and \\, such as " + DefaultPrefix
	switch {
	case len(prefix) > maxPrefix:
		return fmt.Errorf("redis prefix %.20q... has %d bytes; it takes up to %d", prefix, len(prefix), maxPrefix)
	case !utf8.ValidString(prefix):
		return fmt.Errorf("redis prefix %q is not UTF-8; %s", prefix, accepted)
	}
	for _, r := range prefix {
		if strings.ContainsRune(`{}*?[]\`, r) || unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return fmt.Errorf("redis prefix %q has a %q in it; %s", prefix, r, accepted)
		}
	}
	return nil
}
