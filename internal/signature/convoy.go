package signature

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/json"
	"hash"
	"strings"
	"time"
)

// readConvoy reads the bare signature of Convoy's simple mode, or t=1700000000,v1=...,v2=... of
// its advanced mode, where each version is a hash and an encoding of the project's. Both follow
// from the length of the digest.
func (a *attempt) readConvoy(value string, now time.Time) string {
	if digest, ok := decodeConvoy(value); ok {
		a.digests = [][]byte{digest}
		return ""
	}
	entries := strings.Split(value, ",")
	for _, text := range entries {
		name, value, _ := strings.Cut(strings.Trim(text, " \t"), "=")
		switch digest, ok := decodeConvoy(value); {
		case name == "t" && a.timestamp != "":
			return a.scheme.Header + " has two timestamps"
		case name == "t":
			a.timestamp = value
		case ok && len(name) > 1 && name[0] == 'v' && strings.Trim(name[1:], "0123456789") == "":
			a.digests = append(a.digests, digest)
		}
	}
	switch {
	case len(a.digests) == 0:
		return a.scheme.Header + " has no signature of a known form"
	case len(a.digests) > maxSignatures:
		return a.scheme.Header + " has too many signatures"
	case a.timestamp == "":
		return a.scheme.Header + " has no timestamp"
	}
	return checkTimestamp(a.timestamp, "s", now, a.scheme.within)
}

func decodeConvoy(text string) ([]byte, bool) {
	for _, size := range []int{sha256.Size, sha512.Size} {
		for _, encoding := range []string{"hex", "base64"} {
			if digest, ok := decodeDigest(text, encoding, size); ok {
				return digest, true
			}
		}
	}
	return nil, false
}

// verifyConvoy checks the body as it was received, and then its compact JSON: Convoy signs that,
// and sends what its producer has given it.
func (a attempt) verifyConvoy(body Body) (string, error) {
	raw, err := body.Whole()
	if err != nil {
		return "", err
	}
	// What is signed in advanced mode, sent as the body of simple mode, would have no timestamp.
	if a.timestamp == "" && len(raw) > 10 && raw[10] == ',' && strings.Trim(string(raw[:10]), "0123456789") == "" {
		return "the body begins with a timestamp", nil
	}
	if a.matchesConvoy(raw) {
		return "", nil
	}
	if err := body.reserve(len(raw)); err != nil {
		return "", err
	}
	compact := bytes.NewBuffer(make([]byte, 0, len(raw)))
	if json.Compact(compact, raw) == nil && compact.Len() < len(raw) && a.matchesConvoy(compact.Bytes()) {
		return "", nil
	}
	return noMatch, nil
}

func (a attempt) matchesConvoy(body []byte) bool {
	for _, key := range a.scheme.keys {
		for _, newHash := range []func() hash.Hash{sha256.New, sha512.New} {
			mac := hmac.New(newHash, key)
			if a.timestamp != "" {
				mac.Write([]byte(a.timestamp + ","))
			}
			mac.Write(body)
			if isOneOf(mac.Sum(nil), a.digests) {
				return true
			}
		}
	}
	return false
}
