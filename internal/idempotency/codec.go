package idempotency

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// The form of a stored record or response, the same in every store:
//
//	magic and version | checksum, 8 bytes | length of the head, 4 bytes | head, JSON | body
//
// The checksum covers everything after it. It also covers the key, and for a
// response the token of the run: a value that damage has moved to another key or
// token has a wrong checksum there.
const (
	recordMagic   = "dedup-rec\x01"
	responseMagic = "dedup-rsp\x01"
)

const (
	checksumSize   = 8
	headLengthSize = 4
)

// EncodeRecord returns the stored form of a key's record.
func EncodeRecord(key Key, r *Record) []byte {
	return encode(recordMagic, recordOwner(key), r, nil)
}

// DecodeRecord reads what [EncodeRecord] wrote for the same key.
func DecodeRecord(key Key, stored []byte) (*Record, error) {
	r := new(Record)
	body, err := decode(recordMagic, recordOwner(key), stored, r)
	if err != nil {
		return nil, err
	}
	switch {
	case len(body) > 0:
		return nil, fmt.Errorf("%d bytes follow the record", len(body))
	case r.Token == "":
		return nil, errors.New("it has no token")
	case r.State != InFlight && r.State != Complete && r.State != Released && r.State != Held:
		return nil, fmt.Errorf("its state %q is unknown", r.State)
	}
	return r, nil
}

// EncodeResponse returns the stored form of the response of a run.
func EncodeResponse(key Key, token string, r *Response) []byte {
	head := *r
	head.Header = make(map[string][]string, len(r.Header))
	for name, values := range r.Header {
		values = slices.Clone(values)
		for i := range values {
			values[i] = bytesToText(values[i])
		}
		head.Header[name] = values
	}
	return encode(responseMagic, responseOwner(key, token), &head, r.Body)
}

// DecodeResponse reads what [EncodeResponse] wrote for the same key and token.
// The body is part of the stored value, not a copy.
func DecodeResponse(key Key, token string, stored []byte) (*Response, error) {
	r := new(Response)
	body, err := decode(responseMagic, responseOwner(key, token), stored, r)
	if err != nil {
		return nil, err
	}
	if r.Status < 100 || r.Status > 999 {
		return nil, fmt.Errorf("its status %d is none of HTTP", r.Status)
	}
	for name, values := range r.Header {
		for i := range values {
			if values[i], err = textToBytes(values[i]); err != nil {
				return nil, fmt.Errorf("its header %s: %w", name, err)
			}
		}
	}
	r.Body = body
	return r, nil
}

// bytesToText writes each byte as the character with its number. The values of
// header fields are bytes in an unknown encoding, but JSON can carry only valid
// UTF-8.
func bytesToText(value string) string {
	text := make([]byte, 0, len(value))
	for i := range len(value) {
		text = utf8.AppendRune(text, rune(value[i]))
	}
	return string(text)
}

// textToBytes reads what [bytesToText] wrote.
func textToBytes(text string) (string, error) {
	value := make([]byte, 0, len(text))
	for _, character := range text {
		if character > 0xff {
			return "", fmt.Errorf("the character %q is no byte", character)
		}
		value = append(value, byte(character))
	}
	return string(value), nil
}

func recordOwner(key Key) []byte                 { return key[:] }
func responseOwner(key Key, token string) []byte { return append(key[:], token...) }

func encode(magic string, owner []byte, head any, body []byte) []byte {
	text, err := json.Marshal(head)
	if err != nil {
		panic("idempotency: a record that JSON cannot hold: " + err.Error()) // impossible by its types
	}
	at := len(magic) + checksumSize
	out := make([]byte, at, at+headLengthSize+len(text)+len(body))
	copy(out, magic)
	out = binary.BigEndian.AppendUint32(out, uint32(len(text)))
	out = append(out, text...)
	out = append(out, body...)
	binary.BigEndian.PutUint64(out[len(magic):], checksum(owner, out[at:]))
	return out
}

func decode(magic string, owner, stored []byte, head any) (body []byte, err error) {
	at := len(magic) + checksumSize
	version := len(magic) - 1
	switch {
	case len(stored) < len(magic) || string(stored[:version]) != magic[:version]:
		return nil, errors.New("it was not written by caddy-dedup")
	case stored[version] != magic[version]:
		return nil, fmt.Errorf("it has format %d; this version reads format %d", stored[version], magic[version])
	case len(stored) < at+headLengthSize:
		return nil, errors.New("it is cut off")
	case binary.BigEndian.Uint64(stored[len(magic):at]) != checksum(owner, stored[at:]):
		return nil, errors.New("its checksum is wrong: it is damaged or belongs to another key")
	}
	length := int(binary.BigEndian.Uint32(stored[at:]))
	rest := stored[at+headLengthSize:]
	if length > len(rest) {
		return nil, errors.New("its head is longer than the whole")
	}
	decoder := json.NewDecoder(bytes.NewReader(rest[:length]))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(head); err != nil {
		return nil, fmt.Errorf("its head: %w", err)
	}
	return rest[length:], nil
}

func checksum(owner, content []byte) uint64 {
	d := xxhash.New()
	_, _ = d.Write(owner) // a hash never fails
	_, _ = d.Write(content)
	return d.Sum64()
}
