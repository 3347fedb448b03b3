package redis

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A value is what Redis keeps of a key. It begins with a head of fixed size, which
// scripts read and change in place: digits in ASCII, because a script has no cheap way
// to read other numbers. The texts follow whose lengths the head has.
//
//	offset  size
//	     0     2  form: D1
//	     2     1  f: a run is in flight, e: it has ended, w: its claim was withdrawn
//	              before it was seen
//	     3    10  revision: a random text, another one at every write
//	    13    13  end of the lease, in ms of the server's clock; 0 unless in flight
//	    26    13  when the record expires, likewise
//	    39     3  length of the token
//	    42     5  length of the inbox channels of those who wait; 0 where nobody does
//	    47     3  length of the tokens of earlier runs
//	    50     6  length of the record
//	    56        token, channels, earlier tokens, record (in the form of the
//	              idempotency package), and the response to the end: i and a whole
//	              response, b where its body lies beside the record, or nothing
//
// Channels and earlier tokens are separated by spaces. head.lua has the same offsets.
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

	longestToken  = 199
	longestRecord = 999_999
	// endRoom is how much larger than that of a claim the record of its end can be, and one
	// that was freed after that. A run that has begun must be able to end.
	endRoom = 100

	responseInside = 'i'
	responseBeside = 'b'
)

// newRevision returns a text that no other write has. Two writes of one token with the
// same one are as good as impossible: 2^-50 for each pair.
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

// encodeValue returns the value for a record, with nobody who waits and without earlier
// tokens. The end of the lease and the expiry are 0 for now: they are by the clock of
// the server that gets the value ([request.aim]). more is room for a response.
// The value takes the place of what is in the room, if it fits there.
func encodeValue(room []byte, key idempotency.Key, r *idempotency.Record, more int) ([]byte, error) {
	state := byte(ended)
	if r.State == idempotency.InFlight {
		state = inFlight
	}
	value := slices.Grow(room[:0], headSize+len(r.Token)+usualRecord+more)[:headSize]
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

// usualRecord is room that the records of most keys do not fill.
const usualRecord = 512

// appendRecord appends what is written of a record. The end of its lease and its expiry
// are left out: they are in the head, by the server's clock.
//
// Of one that the head has no room for the error says so, whoever is to write it: scripts
// would make a head of another size, and then nobody could read the value any more.
func appendRecord(dst []byte, key idempotency.Key, r *idempotency.Record) ([]byte, error) {
	stored := *r
	stored.LeaseUntil, stored.Expires = time.Time{}, time.Time{}
	at, most := len(dst), longestRecord
	if r.State == idempotency.InFlight {
		most -= endRoom
	}
	dst = idempotency.AppendRecord(dst, key, &stored)
	switch size := len(dst) - at; {
	case len(r.Token) > longestToken:
		return nil, fmt.Errorf("a token of %d bytes is too long; it has up to %d", len(r.Token), longestToken)
	case size > most:
		return nil, fmt.Errorf("the key's record has %d bytes, and Redis is to keep up to %d: its delivery ID is too long; set max_key_length to less", size, most)
	}
	return dst, nil
}

// putDigits writes a number with as many digits as there is room for.
func putDigits(to []byte, n int64) {
	for i := len(to) - 1; i >= 0; i-- {
		to[i] = byte('0' + n%10)
		n /= 10
	}
}

// parts are those of a value, as slices of it.
type parts struct {
	state         byte
	revision      []byte
	lease, expiry int64
	token         []byte
	earlier       []byte
	record        []byte
	response      []byte
}

// splitValue takes a value apart.
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
	if !ok1 || !ok2 || int64(len(rest)) < lengths[0]+lengths[1]+lengths[2]+lengths[3] {
		return p, errNotOurs
	}
	p.token, rest = rest[:lengths[0]], rest[lengths[0]:]
	rest = rest[lengths[1]:] // the channels, which only scripts read
	p.earlier, rest = rest[:lengths[2]], rest[lengths[2]:]
	p.record, p.response = rest[:lengths[3]], rest[lengths[3]:]
	return p, nil
}

// mostRoom is how large the room for a value may be that is kept for the next one.
const mostRoom = 4 << 10

// roomOf returns the room that a value lies in, to be used again.
func roomOf(value []byte) []byte {
	if cap(value) > mostRoom {
		return nil
	}
	return value[:0]
}

func digits(text []byte) (n int64, ok bool) {
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, true
}

// found is a record as it was found in Redis.
type found struct {
	record *idempotency.Record
	now    time.Time
	// revision names this state of the record: its token and its revision.
	revision string
	// withdrawn says that nobody has claimed the key, and that the claim of this record
	// is not to count when it comes.
	withdrawn bool
	// encoded is the record as it was stored.
	encoded []byte
	// response is that kept in the value: what follows its first byte. beside says
	// that its body lies beside it.
	response []byte
	beside   bool
}

// decodeFound reads the value under the record's name, at a time of the server in ms.
func decodeFound(key idempotency.Key, name string, value []byte, now int64) (*found, error) {
	p, err := splitValue(value)
	if err != nil {
		return nil, unreadable(name, "%w", err)
	}
	f := &found{now: fromMillis(now), revision: p.name(), encoded: p.record, withdrawn: p.state == withdrawn}
	if f.record, err = idempotency.DecodeRecord(key, p.record); err != nil {
		return nil, unreadable(name, "%w", err)
	}
	// The record and its head are written together. If they do not fit each other,
	// somebody else has changed them.
	runs := p.state == inFlight
	switch {
	case f.record.Token != string(p.token), runs != (f.record.State == idempotency.InFlight), runs != (p.lease > 0), p.expiry <= 0:
		return nil, unreadable(name, "its record and its head do not belong together")
	case !runs && p.state != ended && p.state != withdrawn:
		return nil, unreadable(name, "its state %q is unknown", p.state)
	}
	if f.response, f.beside, err = p.kept(); err != nil {
		return nil, unreadable(name, "%w", err)
	}
	f.record.LeaseUntil = fromMillis(p.lease)
	f.record.Expires = fromMillis(p.expiry)
	f.record = f.record.Effective(f.now)
	return f, nil
}

// kept returns the response in a value, nil if there is none. beside says that its body
// lies beside it.
func (p parts) kept() (response []byte, beside bool, err error) {
	if len(p.response) == 0 {
		return nil, false, nil
	}
	switch kind := p.response[0]; kind {
	case responseInside, responseBeside:
		return p.response[1:], kind == responseBeside, nil
	default:
		return nil, false, fmt.Errorf("its response begins with %q, which is no kind of response", kind)
	}
}

// name returns what tells this state of a record from all others.
func (p parts) name() string { return string(p.token) + ":" + string(p.revision) }

// sameRecord reports whether a value holds the record of another one.
func (f *found) sameRecord(value []byte) bool {
	p, err := splitValue(value)
	return err == nil && bytes.Equal(f.encoded, p.record)
}

// errNotOurs says that a value has not the form that caddy-dedup gives it.
var errNotOurs = errors.New("it does not begin as what caddy-dedup writes, or is cut off")
