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

// names makes the names of a store's Redis keys and channels. All have the same prefix, so that an ACL
// needs one pattern for the keys and one for the channels.
//
// A cluster hashes only what is in braces, so all names of a key are in one slot.
type names struct{ prefix string }

// record returns the name of a key's value.
func (n names) record(key idempotency.Key) string {
	name := make([]byte, 0, maxPrefix+2+2*len(key)) // on the stack
	name = append(append(name, n.prefix...), '{')
	return string(append(hex.AppendEncode(name, key[:]), '}'))
}

// response returns the name of the response of one run that is kept beside the record.
func (n names) response(key idempotency.Key, token string) string {
	return n.record(key) + ":" + token
}

// unsettled returns the name of that response until the run is settled: one for all attempts to settle
// it, so that they leave one copy. A body that is sealed has the start of its text in the name. A late
// command of an earlier attempt, which was sealed with another nonce, must not replace it.
func (n names) unsettled(key idempotency.Key, token string, r *idempotency.Response) string {
	name := n.response(key, token) + ":unsettled"
	if r.SealedBy != "" {
		name += ":" + hex.EncodeToString(r.Body[:min(len(r.Body), 8)])
	}
	return name
}

// inbox returns the name of the channel of one process.
func (n names) inbox(id string) string { return n.prefix + "inbox:" + id }

// copies returns the name of the channel for keys whose kept responses were removed or replaced.
func (n names) copies() string { return n.prefix + "copies" }

// records returns the SCAN pattern that matches the records whose keys, in hex, have this prefix, and no
// responses.
func (n names) records(prefix string) string { return n.prefix + "{" + prefix + "*}" }

// keyIn returns the key of the record with this name. ok is false for other names that match the
// patterns.
func (n names) keyIn(name string) (key idempotency.Key, ok bool) {
	rest, hasPrefix := strings.CutPrefix(name, n.prefix+"{")
	hex, closed := strings.CutSuffix(rest, "}")
	key, err := idempotency.ParseKey(hex)
	return key, hasPrefix && closed && err == nil && key.String() == hex
}

// CheckPrefix returns an error if a text is not valid as the prefix in [Options]. Braces would change
// the slots in a cluster, * ? [ ] \ the patterns, and a space the list of channels in a value.
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
