// Package seal encrypts what a store does not need to read: responses, delivery IDs
// and fingerprints. A [Sealer] has the encryption keys. A [Store] is put around
// another store: it encrypts what goes in and decrypts what comes out.
//
// The name of a record ([idempotency.Key]) does not depend on encryption, so that records stay valid
// when encryption is turned on or off or an encryption key is replaced. But a reader of the
// store who guesses a delivery ID can check the guess against the names. A secret namespace
// prevents that.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// KeySize is the size of a key that a [Sealer] takes, in bytes: that of AES-256.
const KeySize = 32

// Sealer encrypts with AES-256-GCM and a random nonce of 96 bits. Because random nonces could repeat
// after very many messages under one key, every record has an encryption key of its own,
// derived from the configured one (HKDF, RFC 5869). The name of the record and, for a
// response, the token of the run are the additional data: a sealed text cannot be opened
// under another record or run.
//
// The first configured key seals; each of them opens what it has sealed. A nil Sealer seals
// nothing, and cannot open what is sealed.
type Sealer struct{ keys []key }

// key is one configured key and what is derived from it.
type key struct {
	// id is stored beside what the key has sealed. It does not disclose the key.
	id string
	// root is the secret from which the encryption key of each record is derived.
	root []byte
	// fingerprints is the secret with which fingerprints are hashed.
	fingerprints []byte
}

// Labels for what is derived from a key, and for the additional data. A change in what one of them
// labels needs a new label.
const (
	keyIDLabel          = "caddy-dedup encryption key ID v1"
	fingerprintLabel    = "caddy-dedup fingerprint secret v1"
	recordKeyLabel      = "caddy-dedup record encryption v1"
	sealedOriginLabel   = "caddy-dedup origin v1"
	sealedReasonLabel   = "caddy-dedup reason v1"
	sealedLocationLabel = "caddy-dedup location v1"
	sealedResponseLabel = "caddy-dedup response v1"
)

// keyIDSize is the size of a key's ID, in bytes. 8 are enough, because an ID only
// has to tell a few keys apart.
const keyIDSize = 8

// New returns a sealer with these keys, or nil if there are none. A key of another size than
// [KeySize] is an error, and so is the same key twice. The error names the position of the
// key, from 1, and never the key itself.
func New(keys ...[]byte) (*Sealer, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	s := new(Sealer)
	for i, secret := range keys {
		if len(secret) != KeySize {
			return nil, fmt.Errorf("key %d has %d bytes; a key has %d", i+1, len(secret), KeySize)
		}
		next := newKey(secret)
		for j, other := range s.keys {
			if other.id == next.id {
				return nil, fmt.Errorf("keys %d and %d are the same; name each key once", j+1, i+1)
			}
		}
		s.keys = append(s.keys, next)
	}
	return s, nil
}

func newKey(secret []byte) key {
	id := sha256.Sum256(append([]byte(keyIDLabel), secret...))
	root, err := hkdf.Extract(sha256.New, secret, nil)
	if err != nil {
		panic("seal: deriving from a key: " + err.Error()) // only a wrong size is an error
	}
	return key{
		id:           hex.EncodeToString(id[:keyIDSize]),
		root:         root,
		fingerprints: derive(root, fingerprintLabel),
	}
}

func derive(root []byte, label string) []byte {
	secret, err := hkdf.Expand(sha256.New, root, label, KeySize)
	if err != nil {
		panic("seal: deriving from a key: " + err.Error()) // only a wrong size is an error
	}
	return secret
}

// KeyIDs returns the IDs of the keys, in their order, for logs. They do not disclose
// the keys.
func (s *Sealer) KeyIDs() []string {
	var ids []string
	for _, key := range s.all() {
		ids = append(ids, key.id)
	}
	return ids
}

func (s *Sealer) all() []key {
	if s == nil {
		return nil
	}
	return s.keys
}

// keyNamed returns the key with this ID, or an error if no such key is configured.
func (s *Sealer) keyNamed(id string) (key, error) {
	if len(s.all()) == 0 {
		return key{}, errors.New("it is encrypted, and no key is configured with encrypt")
	}
	for _, key := range s.keys {
		if key.id == id {
			return key, nil
		}
	}
	return key{}, fmt.Errorf("it is encrypted with the key %q, which is not configured; those of encrypt are %q", id, s.KeyIDs())
}

// Fingerprints returns the fingerprint of a request in every form in which an earlier claim of the
// record may have stored it. A new claim stores the first one.
//
// There is one form for each key, "<kind>/<key ID>:<hash>". The hash is an HMAC (RFC 2104) over the
// name of the record and the fingerprint, with a secret derived from the key. The last form is the
// plain fingerprint, which a claim stores without encryption. An empty fingerprint has no
// forms.
func (s *Sealer) Fingerprints(record idempotency.Key, fingerprint string) []string {
	if fingerprint == "" {
		return nil
	}
	kind, _, _ := strings.Cut(fingerprint, ":")
	forms := make([]string, 0, len(s.all())+1)
	for _, key := range s.all() {
		forms = append(forms, kind+"/"+key.id+":"+key.fingerprint(record, fingerprint))
	}
	return append(forms, fingerprint)
}

// fingerprint returns the hash of a fingerprint under the key, in hex.
func (k key) fingerprint(record idempotency.Key, fingerprint string) string {
	h := hmac.New(sha256.New, k.fingerprints)
	h.Write(record[:]) // of a fixed size, so it needs no separator
	h.Write([]byte(fingerprint))
	return hex.EncodeToString(h.Sum(nil))
}

// keyOfFingerprint returns the ID of the key that a form of a fingerprint names, ""
// for the plain form.
func keyOfFingerprint(fingerprint string) string {
	form, _, _ := strings.Cut(fingerprint, ":")
	_, id, _ := strings.Cut(form, "/")
	return id
}

// check returns an error if a record needs a key that is not configured.
func (s *Sealer) check(r *idempotency.Record) error {
	if r == nil {
		return nil
	}
	for _, id := range []string{r.SealedBy, keyOfFingerprint(r.Fingerprint)} {
		if id == "" {
			continue
		}
		if _, err := s.keyNamed(id); err != nil {
			return err
		}
	}
	return nil
}

// cipherOf returns the cipher for one record.
func (k key) cipherOf(record idempotency.Key) cipher.AEAD {
	block, err := aes.NewCipher(derive(k.root, recordKeyLabel+string(record[:])))
	if err != nil {
		panic("seal: AES: " + err.Error()) // only a wrong size is an error
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic("seal: GCM: " + err.Error()) // only another cipher than AES is an error
	}
	return aead
}

// binding returns the additional data for a sealed text. It is unique: the length of the record's name
// is fixed, and no label is a prefix of another one.
func binding(label string, record idempotency.Key, token string) []byte {
	return append(append([]byte(label), record[:]...), token...)
}

// seal encrypts a text with the first key, of which there must be one.
func (s *Sealer) seal(label string, record idempotency.Key, token string, text []byte) (sealed []byte, keyID string) {
	first := s.keys[0]
	return first.cipherOf(record).Seal(nil, nil, text, binding(label, record, token)), first.id
}

// open decrypts a text that the key with this ID has sealed.
func (s *Sealer) open(keyID, label string, record idempotency.Key, token string, sealed []byte) ([]byte, error) {
	key, err := s.keyNamed(keyID)
	if err != nil {
		return nil, err
	}
	text, err := key.cipherOf(record).Open(nil, nil, sealed, binding(label, record, token))
	if err != nil {
		return nil, fmt.Errorf("it does not open with the encryption key %s: it was changed, or belongs to another record", keyID)
	}
	return text, nil
}

// sealResponse returns the response to store in place of r. Its status stays readable, for
// operators.
func (s *Sealer) sealResponse(record idempotency.Key, token string, r *idempotency.Response) *idempotency.Response {
	if len(s.all()) == 0 || r == nil {
		return r
	}
	sealed := &idempotency.Response{Status: r.Status}
	sealed.Body, sealed.SealedBy = s.seal(sealedResponseLabel, record, token, idempotency.AppendResponse(nil, record, token, r))
	if location := r.Location(); location != "" && sealed.IsLarge() {
		if location != idempotency.LongLocation {
			location = s.sealText(sealedLocationLabel, record, location)
		}
		sealed.Header = map[string][]string{"Location": {location}}
	}
	return sealed
}

// openResponse reverses [Sealer.sealResponse]. It returns a response that is not sealed unchanged.
func (s *Sealer) openResponse(record idempotency.Key, token string, r *idempotency.Response) (*idempotency.Response, error) {
	if r == nil || r.SealedBy == "" {
		return r, nil
	}
	text, err := s.open(r.SealedBy, sealedResponseLabel, record, token, r.Body)
	if err != nil {
		return nil, err
	}
	return idempotency.DecodeResponse(record, token, text)
}

// sealOrigin returns the claim as it is to be stored.
func (s *Sealer) sealOrigin(c idempotency.Claim) idempotency.Claim {
	if len(s.all()) == 0 {
		return c
	}
	text, err := json.Marshal(c.Origin)
	if err != nil {
		panic("seal: an origin that JSON cannot hold: " + err.Error()) // impossible by its type
	}
	c.Sealed, c.SealedBy = s.seal(sealedOriginLabel, c.Key, "", text)
	c.Origin = idempotency.Origin{}
	return c
}

// sealText returns a text of a record as it is stored. It includes the ID of its key, which may differ
// from that of the claim.
func (s *Sealer) sealText(label string, record idempotency.Key, text string) string {
	if len(s.all()) == 0 || text == "" {
		return text
	}
	sealed, keyID := s.seal(label, record, "", []byte(text))
	return sealedText + keyID + string(sealed)
}

// sealedText is the prefix of a sealed text. A readable one never has it.
const sealedText = "\x00"

// openText reverses [Sealer.sealText]. A text that does not open is empty: no rule reads it.
func (s *Sealer) openText(label string, record idempotency.Key, stored string) string {
	sealed, is := strings.CutPrefix(stored, sealedText)
	if !is {
		return stored
	}
	if len(sealed) < 2*keyIDSize {
		return ""
	}
	text, err := s.open(sealed[:2*keyIDSize], label, record, "", []byte(sealed[2*keyIDSize:]))
	if err != nil {
		return ""
	}
	return string(text)
}

// openTexts returns the record with a readable reason and location: a copy if one of them is sealed, because
// stores share records.
func (s *Sealer) openTexts(record idempotency.Key, r *idempotency.Record) *idempotency.Record {
	if r == nil || !strings.HasPrefix(r.Reason, sealedText) && !strings.HasPrefix(r.Location, sealedText) {
		return r
	}
	opened := *r
	opened.Reason = s.openText(sealedReasonLabel, record, r.Reason)
	opened.Location = s.openText(sealedLocationLabel, record, r.Location)
	return &opened
}

// openRecord returns a copy of the record for operators, with a readable origin and reason. It leaves
// Previous sealed: operators do not see it, and its key need not be configured.
func (s *Sealer) openRecord(record idempotency.Key, r *idempotency.Record) (*idempotency.Record, error) {
	if err := s.check(r); err != nil || r == nil {
		return r, err
	}
	opened := *s.openTexts(record, r)
	if r.SealedBy == "" {
		return &opened, nil
	}
	text, err := s.open(r.SealedBy, sealedOriginLabel, record, "", r.Sealed)
	if err != nil {
		return nil, fmt.Errorf("its delivery ID: %w", err)
	}
	if err := json.Unmarshal(text, &opened.Origin); err != nil {
		return nil, fmt.Errorf("its delivery ID: %w", err)
	}
	opened.Sealed, opened.SealedBy = nil, ""
	return &opened, nil
}
