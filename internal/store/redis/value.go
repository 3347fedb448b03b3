package redis

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A value is the string that Redis stores for a key. It starts with a head of fixed size, which scripts
// read and change in place. Numbers in the head are ASCII digits, because scripts cannot read binary
// numbers cheaply. The parts whose lengths are in the head follow.
//
//	offset  size
//	     0     2  form: D1
//	     2     1  f: a run is in flight, e: it has ended, w: the claim was withdrawn before
//	              the server executed it
//	     3    10  revision: a random text, a new one at every write
//	    13    13  end of the lease, in ms of the server's clock; 0 unless in flight
//	    26    13  expiry of the record, in ms of the server's clock
//	    39     3  length of the token
//	    42     5  length of the inbox channels of the processes that wait for the run
//	    47     3  length of the tokens of earlier runs
//	    50     6  length of the record
//	    56        token, channels, earlier tokens, record (as the idempotency package encodes
//	              it), and to the end the response: i and a complete response, b and one whose
//	              body is beside the record, or nothing
//
// Spaces separate channels and earlier tokens. head.lua and settle.lua have the same offsets.
const (
	valueForm = "D1"
	inFlight  = 'f'
	ended     = 'e'
	withdrawn = 'w'

	atState      = 2
	atRevision   = 3
	revisionSize = 10
	atLease      = 13
	atExpiry     = 26
	timeSize     = 13
	atToken      = 39
	atChannels   = 42
	atEarlier    = 47
	atRecord     = 50
	headSize     = 56

	maxToken  = 199
	maxRecord = 999_999
	// settleMargin is how many bytes a record may grow when its run ends, and when an operator
	// changes it after that: mostly those of a sealed reason. A claim leaves them free, so that every
	// run can be settled.
	settleMargin = 2 * idempotency.MaxReason
	// recordSizeHint is a size, in bytes, that most records do not exceed.
	recordSizeHint = 512

	responseInside = 'i'
	responseBeside = 'b'
)

// claimRevision is the revision of a claim of a key without a record, until the claim is written again. So the
// settlement knows the whole value that was claimed ([settleCall.claimedValue]).
const claimRevision = "0000000000"

// newRevision returns a random text that differs from that of any other write: two writes with the same
// token have the same revision with a probability of 2^-50.
func newRevision() [revisionSize]byte {
	const digits = "0123456789abcdefghijklmnopqrstuv"
	var revision [revisionSize]byte
	bits := rand.Uint64()
	for i := range revision {
		revision[i] = digits[bits&31]
		bits >>= 5
	}
	return revision
}

// encodeValue returns the value for a record, without channels and earlier tokens, and with capacity for
// so many more bytes. It uses the buffer if that is large enough. The end of the lease and the expiry
// are 0 until [request.setTimes] sets them by the clock of the server.
func encodeValue(buffer []byte, key idempotency.Key, r *idempotency.Record, more int) ([]byte, error) {
	state := byte(ended)
	if r.State == idempotency.InFlight {
		state = inFlight
	}
	value := slices.Grow(buffer[:0], headSize+len(r.Token)+recordSizeHint+more)[:headSize]
	for i := range value {
		value[i] = '0'
	}
	copy(value, valueForm)
	value[atState] = state
	revision := newRevision()
	copy(value[atRevision:], revision[:])
	putDigits(value[atToken:atChannels], int64(len(r.Token)))
	value = append(value, r.Token...)
	at := len(value)
	value, err := appendRecord(value, key, r)
	if err != nil {
		return nil, err
	}
	putDigits(value[atRecord:headSize], int64(len(value)-at))
	return value, nil
}

// appendRecord appends the encoded record, without the end of its lease and its expiry: these are in
// the head, by the server's clock. It returns an error if the length of the record does not fit into
// the head.
func appendRecord(dst []byte, key idempotency.Key, r *idempotency.Record) ([]byte, error) {
	stored := *r
	stored.LeaseUntil, stored.Expires = time.Time{}, time.Time{}
	at, limit := len(dst), maxRecord
	if r.State == idempotency.InFlight {
		limit -= settleMargin
	}
	dst = idempotency.AppendRecord(dst, key, &stored)
	switch size := len(dst) - at; {
	case len(r.Token) > maxToken:
		return nil, fmt.Errorf("a token has %d bytes; the maximum is %d", len(r.Token), maxToken)
	case size > limit:
		return nil, fmt.Errorf("the key's record has %d bytes, and the maximum in Redis is %d: its delivery ID is too long; reduce max_key_length", size, limit)
	}
	return dst, nil
}

// valueBuffers has buffers for values. They save a third of what a claim and a settlement would
// allocate.
var valueBuffers sync.Pool

// valueBuffer returns a buffer for encodeValue, nil if there is none to reuse.
func valueBuffer() []byte {
	buffer, _ := valueBuffers.Get().(*[]byte)
	if buffer == nil {
		return nil
	}
	return *buffer
}

// reuse returns the buffer of a value to valueBuffers. No flush may use the value any more.
func reuse(value []byte) {
	if cap(value) <= 4<<10 {
		valueBuffers.Put(&value)
	}
}

// putDigits fills to with the last decimal digits of n.
func putDigits(to []byte, n int64) {
	for i := len(to) - 1; i >= 0; i-- {
		to[i] = byte('0' + n%10)
		n /= 10
	}
}

// parts are the parts of a value, as slices of it.
type parts struct {
	state         byte
	revision      []byte
	lease, expiry int64
	token         []byte
	earlier       []byte
	record        []byte
	response      []byte
}

// splitValue splits a value into its parts. Besides an error, it may return the parts of a value whose times
// cannot be read.
func splitValue(value []byte) (parts, error) {
	var p parts
	if len(value) < headSize || string(value[:atState]) != valueForm {
		return p, errNotOurs
	}
	head := value[:headSize]
	var lengths [4]int64
	for i, text := range [4][]byte{head[atToken:atChannels], head[atChannels:atEarlier], head[atEarlier:atRecord], head[atRecord:]} {
		n, ok := digits(text)
		if !ok {
			return p, errNotOurs
		}
		lengths[i] = n
	}
	p.state, p.revision = head[atState], head[atRevision:atLease]
	var ok1, ok2 bool
	p.lease, ok1 = digits(head[atLease:atExpiry])
	p.expiry, ok2 = digits(head[atExpiry:atToken])
	rest := value[headSize:]
	if int64(len(rest)) < lengths[0]+lengths[1]+lengths[2]+lengths[3] {
		return p, errNotOurs
	}
	p.token, rest = rest[:lengths[0]], rest[lengths[0]:]
	rest = rest[lengths[1]:] // the channels, which only scripts read
	p.earlier, rest = rest[:lengths[2]], rest[lengths[2]:]
	p.record, p.response = rest[:lengths[3]], rest[lengths[3]:]
	if !ok1 || !ok2 {
		return p, errNotOurs
	}
	return p, nil
}

func digits(text []byte) (n int64, ok bool) {
	parsed, err := strconv.ParseUint(string(text), 10, 63)
	return int64(parsed), err == nil
}

// found is a record that was read from Redis.
type found struct {
	record *idempotency.Record // the record that counts at now; nil for none
	now    time.Time
	// version identifies this state of the record: its token and its revision.
	version string
	// withdrawn reports whether the claim of the record was withdrawn before the server executed
	// it. Then the key has no record; the value only stops a late copy of the claim.
	withdrawn bool
	// encoded is the record as it was stored.
	encoded []byte
	// response is the response in the value, without its first byte. bodyBeside reports whether its
	// body is stored beside the value.
	response   []byte
	bodyBeside bool
}

// decodeFound decodes the value under a record's name. now is the server's time in ms.
func decodeFound(key idempotency.Key, name string, value []byte, now int64) (*found, error) {
	p, err := splitValue(value)
	if err != nil {
		return nil, unreadable(name, "%w", err)
	}
	f := &found{now: fromMillis(now), version: p.version(), encoded: p.record, withdrawn: p.state == withdrawn}
	if f.record, err = idempotency.DecodeRecord(key, p.record); err != nil {
		return nil, unreadable(name, "%w", err)
	}
	// The record and its head are written together.
	isInFlight := p.state == inFlight
	switch {
	case f.record.Token != string(p.token), isInFlight != (f.record.State == idempotency.InFlight), isInFlight != (p.lease > 0), p.expiry <= 0:
		return nil, unreadable(name, "its record and its head do not belong together")
	case !isInFlight && p.state != ended && p.state != withdrawn:
		return nil, unreadable(name, "its state %q is unknown", p.state)
	}
	if f.response, f.bodyBeside, err = p.keptResponse(); err != nil {
		return nil, unreadable(name, "%w", err)
	}
	f.record.LeaseUntil = fromMillis(p.lease)
	f.record.Expires = fromMillis(p.expiry)
	f.record = f.record.Effective(f.now)
	return f, nil
}

// keptResponse returns the response in a value, nil if there is none. bodyBeside reports whether its
// body is stored beside the value.
func (p parts) keptResponse() (response []byte, bodyBeside bool, err error) {
	if len(p.response) == 0 {
		return nil, false, nil
	}
	switch kind := p.response[0]; kind {
	case responseInside, responseBeside:
		return p.response[1:], kind == responseBeside, nil
	default:
		return nil, false, fmt.Errorf("its response has the unknown kind %q", kind)
	}
}

func (p parts) version() string { return string(p.token) + ":" + string(p.revision) }

// sameRecord reports whether a value has the same encoded record.
func (f *found) sameRecord(value []byte) bool {
	p, err := splitValue(value)
	return err == nil && bytes.Equal(f.encoded, p.record)
}

// errNotOurs is the error for a value that does not have the form above.
var errNotOurs = errors.New("it was not written by caddy-dedup, or is cut off")
