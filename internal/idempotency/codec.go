package idempotency

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/fxamacker/cbor/v2"
)

// The stored form of records and responses, the same in every store. A record is
//
//	magic and version, 4 bytes | checksum, 8 bytes | CBOR
//
// and a response
//
//	magic and version, 4 bytes | checksum, 8 bytes | length of the CBOR, 4 bytes | CBOR | body
//
// The CBOR (RFC 8949) is an array of fields. The checksum covers what follows it except the body. The
// fields have the length and the checksum of the body, so that a store can keep the body elsewhere. The
// checksum also covers the key and, for a response, the token of the run, so that a value under another
// key or token is an error.
//
// Numbers outside the CBOR are big-endian. A change of the form needs a new version in the magic.
const (
	recordMagic   = "ddr\x08"
	responseMagic = "dda\x04"
)

const (
	magicSize    = len(recordMagic)
	checksumSize = 8
	frameSize    = magicSize + checksumSize
	lengthSize   = 4
)

// storedRecord is a [Record] with times in milliseconds since 1970, 0 for none.
type storedRecord struct {
	_      struct{} `cbor:",toarray"`
	Record Record
	// The CBOR of the Record has none of these.
	Previous                            *storedRecord
	Claimed, Ended, LeaseUntil, Expires int64
}

// storedHead is a [Response] with the length and the checksum of its body in place of the body.
type storedHead struct {
	_        struct{} `cbor:",toarray"`
	Response Response
	Length   int
	Sum      uint64
}

// encoding sorts maps, so that equal responses are equal bytes.
var encoding = mode(cbor.EncOptions{Sort: cbor.SortLengthFirst}.UserBufferEncMode())

// Header values may have any bytes, so texts need not be UTF-8.
var decoding = mode(cbor.DecOptions{
	UTF8: cbor.UTF8DecodeInvalid, DupMapKey: cbor.DupMapKeyEnforcedAPF, IndefLength: cbor.IndefLengthForbidden,
	TagsMd: cbor.TagsForbidden, ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
}.DecMode())

func mode[M any](m M, err error) M {
	if err != nil {
		panic("idempotency: options of CBOR: " + err.Error()) // they are constant
	}
	return m
}

// AppendRecord appends the stored form of a key's record. Times are stored in whole
// milliseconds.
func AppendRecord(dst []byte, key Key, r *Record) []byte {
	at := len(dst)
	dst = append(slices.Grow(dst, defaultCapacity), recordMagic...)
	e := encoders.Get().(*encoder)
	e.record = storedForm(r)
	if r.Previous != nil {
		e.previous = storedForm(r.Previous)
		e.record.Previous = &e.previous
	}
	dst = e.append(append(dst, make([]byte, checksumSize)...), &e.record)
	seal(dst[at:], &key, "")
	return dst
}

// DecodeRecord reads what [AppendRecord] wrote for the same key.
func DecodeRecord(key Key, stored []byte) (*Record, error) {
	content, err := open(recordMagic, stored, &key, "")
	if err != nil {
		return nil, err
	}
	s := new(storedRecord)
	if err := decoding.Unmarshal(content, s); err != nil {
		return nil, err
	}
	for r := s; r != nil; r = r.Previous {
		switch r.Record.State {
		case InFlight, Complete, Released, Held:
		default:
			return nil, fmt.Errorf("its state %q is unknown", r.Record.State)
		}
		if r.Record.Token == "" {
			return nil, errors.New("it has no token")
		}
	}
	if s.Previous != nil && s.Previous.Previous != nil {
		return nil, errors.New("the record that it replaces replaces another one")
	}
	return s.record(), nil
}

// AppendResponse appends the stored form of the response of a run: what
// [AppendResponseHead] writes, and then the body.
func AppendResponse(dst []byte, key Key, token string, r *Response) []byte {
	return append(AppendResponseHead(slices.Grow(dst, defaultCapacity+len(r.Body)), key, token, r), r.Body...)
}

// AppendResponseHead appends the stored form of a response without its body, for a
// store that keeps the body elsewhere. [DecodeResponseParts] reads both.
func AppendResponseHead(dst []byte, key Key, token string, r *Response) []byte {
	at := len(dst)
	dst = append(slices.Grow(dst, defaultCapacity), responseMagic...)
	e := encoders.Get().(*encoder)
	e.head = storedHead{Response: *r, Length: len(r.Body), Sum: xxhash.Sum64(r.Body)}
	dst = e.append(append(dst, make([]byte, checksumSize+lengthSize)...), &e.head)
	head := dst[at:]
	if len(head) > math.MaxUint32 {
		panic("idempotency: a response's header of 4 GiB") // HTTP servers and clients take some MiB at most
	}
	binary.BigEndian.PutUint32(head[frameSize:], uint32(len(head)-frameSize-lengthSize))
	seal(head, &key, token)
	return dst
}

// DecodeResponse reads what [AppendResponse] wrote for the same key and token. The body
// is a part of stored, not a copy.
func DecodeResponse(key Key, token string, stored []byte) (*Response, error) {
	if err := checkMagic(responseMagic, stored); err != nil {
		return nil, err
	}
	if len(stored) < frameSize+lengthSize {
		return nil, errTruncated
	}
	length := uint64(binary.BigEndian.Uint32(stored[frameSize:]))
	if length > uint64(len(stored)-frameSize-lengthSize) {
		return nil, errors.New("its head is longer than the whole")
	}
	head := frameSize + lengthSize + int(length)
	return DecodeResponseParts(key, token, stored[:head], stored[head:len(stored):len(stored)])
}

// DecodeResponseParts reads what [AppendResponseHead] wrote for the same key and token,
// and checks that the body belongs to it. It does not copy the body.
func DecodeResponseParts(key Key, token string, head, body []byte) (*Response, error) {
	s, err := decodeHead(key, token, head)
	switch {
	case err != nil:
		return nil, err
	case s.Length != len(body):
		return nil, fmt.Errorf("its body has %d bytes, not %d", len(body), s.Length)
	case s.Sum != xxhash.Sum64(body):
		return nil, errors.New("the checksum of its body is wrong: it is damaged")
	}
	if s.Response.Body = body; body == nil {
		s.Response.Body = []byte{}
	}
	return &s.Response, nil
}

// DecodeResponseWithoutBody reads what [AppendResponseHead] wrote for the same key and token, for a
// store that has lost the body. The response is [Response.Omitted].
func DecodeResponseWithoutBody(key Key, token string, head []byte) (*Response, error) {
	s, err := decodeHead(key, token, head)
	if err != nil {
		return nil, err
	}
	if s.Response.SealedBy != "" {
		s.Response.Header = nil // the header is lost with the body, and this one is encrypted
	}
	return s.Response.Reduced(), nil
}

func decodeHead(key Key, token string, head []byte) (*storedHead, error) {
	content, err := open(responseMagic, head, &key, token)
	if err != nil {
		return nil, err
	}
	if len(content) < lengthSize || uint64(binary.BigEndian.Uint32(content)) != uint64(len(content)-lengthSize) {
		return nil, errTruncated
	}
	s := new(storedHead)
	if err := decoding.Unmarshal(content[lengthSize:], s); err != nil {
		return nil, err
	}
	if s.Response.Status < 100 || s.Response.Status > 999 {
		return nil, fmt.Errorf("its status is %d; a status of HTTP has three digits", s.Response.Status)
	}
	return s, nil
}

// defaultCapacity is enough for most records and for the headers of most responses, in bytes.
const defaultCapacity = 512

// encoder is reused: a first delivery encodes up to five values.
type encoder struct {
	buffer           bytes.Buffer
	record, previous storedRecord
	head             storedHead
}

var encoders = sync.Pool{New: func() any { return new(encoder) }}

// append appends the CBOR of v, a field of the encoder, and returns the encoder to the pool.
func (e *encoder) append(dst []byte, v any) []byte {
	e.buffer = *bytes.NewBuffer(dst)
	if err := encoding.MarshalToBuffer(v, &e.buffer); err != nil {
		panic("idempotency: encoding CBOR: " + err.Error()) // impossible by the types
	}
	dst = e.buffer.Bytes()
	*e = encoder{}
	encoders.Put(e)
	return dst
}

func storedForm(r *Record) storedRecord {
	return storedRecord{
		Record: *r, Claimed: millis(r.Claimed), Ended: millis(r.Ended), LeaseUntil: millis(r.LeaseUntil), Expires: millis(r.Expires),
	}
}

func (s *storedRecord) record() *Record {
	r := &s.Record
	r.Claimed, r.Ended, r.LeaseUntil, r.Expires = moment(s.Claimed), moment(s.Ended), moment(s.LeaseUntil), moment(s.Expires)
	if s.Previous != nil {
		r.Previous = s.Previous.record()
	}
	return r
}

func millis(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return at.UnixMilli()
}

func moment(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

var errTruncated = errors.New("it is cut off")

// checkMagic returns an error for a value that does not start with this magic, or has no
// checksum.
func checkMagic(magic string, stored []byte) error {
	const version = magicSize - 1
	switch {
	case len(stored) < magicSize || string(stored[:version]) != magic[:version]:
		return errors.New("it was not written by caddy-dedup")
	case stored[version] != magic[version]:
		return fmt.Errorf("another version has written it: it has format %d; this version reads format %d", stored[version], magic[version])
	case len(stored) < frameSize:
		return errTruncated
	default:
		return nil
	}
}

// open checks magic and checksum, and returns what follows them.
func open(magic string, stored []byte, key *Key, token string) ([]byte, error) {
	if err := checkMagic(magic, stored); err != nil {
		return nil, err
	}
	content := stored[frameSize:]
	if binary.BigEndian.Uint64(stored[magicSize:]) != checksum(key, token, content) {
		return nil, errors.New("its checksum is wrong: it is damaged or belongs to another key")
	}
	return content, nil
}

// seal writes the checksum into a value that is otherwise complete.
func seal(value []byte, key *Key, token string) {
	binary.BigEndian.PutUint64(value[magicSize:], checksum(key, token, value[frameSize:]))
}

func checksum(key *Key, token string, content []byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(key[:]) // a hash never fails
	_, _ = d.WriteString(token)
	_, _ = d.Write(content)
	return d.Sum64()
}
