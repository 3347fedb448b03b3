package file

import (
	"bytes"
	"encoding/binary"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Three tables share the database. The first byte of a name says which one it belongs to:
//
//	'r' key                -> the value of a key
//	'a' key token          -> a value without a record: the response of an earlier run
//	'e' due key [token]    -> nothing; the value expires at this moment
//
// Each value has exactly one expiry, at the time when the value is due. So the sweeper removes what
// is due without reading it (sweep.go). A value without its expiry would never be removed, and a
// rebuilt filter would not have its key (filter.go). An expiry that is left of an earlier value would
// remove the next one too early.
const (
	answerTable = 'a'
	expiryTable = 'e'
	valueTable  = 'r'
)

const (
	keySize    = len(idempotency.Key{})
	momentSize = 8
)

// valueName returns the name of a key's value or, with a token, of the response of an earlier run.
func valueName(key idempotency.Key, token string) []byte {
	table := byte(valueTable)
	if token != "" {
		table = answerTable
	}
	name := append(make([]byte, 0, 1+keySize+len(token)), table)
	return append(append(name, key[:]...), token...)
}

func expiryName(due int64, key idempotency.Key, token string) []byte {
	name := append(make([]byte, 0, 1+momentSize+keySize+len(token)), expiryTable)
	name = binary.BigEndian.AppendUint64(name, uint64(due))
	return append(append(name, key[:]...), token...)
}

// value is what the database has of a key: its record, and one response that duplicates or waiting
// requests may still ask for. Its bytes are
//
//	flags, 1 byte | length of the record, varint | record
//
// and, if there is a response,
//
//	until, 8 bytes | [length of the token, varint | token] | [place of the body, 24 bytes] | response
//
// Record and response are as package idempotency encodes them, with checksums. The token is left
// out if it is the record's, the place if the body is part of the response.
type value struct {
	record *idempotency.Record // nil in the table of answers
	answer *answer             // nil if there is none
}

const (
	hasAnswer = 1 << iota
	hasToken
	hasLocation
)

// answer is the response of the run with this token.
type answer struct {
	token    string
	until    time.Time // when it expires
	location location  // of its body; zero if the body is part of encoded
	// encoded is the response as it is stored, nil if bare has dropped it to save memory.
	encoded []byte
	// response is set instead of encoded until the response, or its body, is stored.
	response *idempotency.Response
}

// live returns the answer, nil if there is none or it has expired.
func (a *answer) live(now time.Time) *answer {
	if a == nil || !now.Before(a.until) {
		return nil
	}
	return a
}

// due returns the time at which all of the value has expired, in milliseconds since 1970.
func (v *value) due() (due int64) {
	if v.record != nil {
		due = v.record.Expires.UnixMilli()
	}
	if v.answer != nil {
		due = max(due, v.answer.until.UnixMilli())
	}
	return due
}

// bare returns the value without the bytes of its response.
func (v *value) bare() *value {
	if v == nil || v.answer == nil {
		return v
	}
	a := *v.answer
	a.encoded, a.response = nil, nil
	return &value{v.record, &a}
}

var errCutOff = errors.New("it is cut off")

// decodeValue reads the value of a key. Its response is part of b, not a copy.
func decodeValue(key idempotency.Key, b []byte) (*value, error) {
	if len(b) == 0 {
		return nil, errCutOff
	}
	flags := b[0]
	record, b, ok := cutLength(b[1:])
	if !ok {
		return nil, errCutOff
	}
	v := new(value)
	if len(record) > 0 {
		var err error
		if v.record, err = idempotency.DecodeRecord(key, record); err != nil {
			return nil, err
		}
	}
	if flags&hasAnswer == 0 {
		return v, nil
	}
	v.answer = new(answer)
	if len(b) < momentSize {
		return nil, errCutOff
	}
	v.answer.until = time.UnixMilli(int64(binary.BigEndian.Uint64(b))).UTC()
	b = b[momentSize:]
	if flags&hasToken != 0 {
		var token []byte
		if token, b, ok = cutLength(b); !ok {
			return nil, errCutOff
		}
		v.answer.token = string(token)
	} else if v.record != nil {
		v.answer.token = v.record.Token
	}
	if flags&hasLocation != 0 {
		if len(b) < locationSize {
			return nil, errCutOff
		}
		v.answer.location = decodeLocation(b)
		b = b[locationSize:]
	}
	v.answer.encoded = b
	return v, nil
}

// decodeRecordValue is decodeValue for the table of values, all of which have a record.
func decodeRecordValue(key idempotency.Key, b []byte) (*value, error) {
	v, err := decodeValue(key, b)
	if err == nil && v.record == nil {
		err = errors.New("it has no record")
	}
	return v, err
}

// cutLength cuts a length-prefixed part off b.
func cutLength(b []byte) (part, rest []byte, ok bool) {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) {
		return nil, nil, false
	}
	end := n + int(length)
	return b[n:end], b[end:], true
}

// valueHeadSize is the room for a record and the head of a response; most need less when encoded.
const valueHeadSize = 1 << 10

// set adds the value and its expiry to a batch, as the value of the key or, with a token, as the
// response of an earlier run.
func (v *value) set(b *pebble.Batch, key idempotency.Key, token string) error {
	// The body is copied once, into the batch. What comes before it is encoded first, because its
	// length is not known.
	var room [valueHeadSize]byte
	flags, head, body := byte(0), room[:0], []byte(nil)
	if v.record != nil {
		head = idempotency.AppendRecord(head, key, v.record)
	}
	recordSize := len(head)
	if a := v.answer; a != nil {
		flags |= hasAnswer
		head = binary.BigEndian.AppendUint64(head, uint64(a.until.UnixMilli()))
		if v.record == nil || v.record.Token != a.token {
			flags |= hasToken
			head = append(binary.AppendUvarint(head, uint64(len(a.token))), a.token...)
		}
		if a.location.segment != 0 {
			flags |= hasLocation
			head = a.location.append(head)
		}
		if body = a.encoded; a.response != nil {
			head = idempotency.AppendResponseHead(head, key, a.token, a.response)
			body = a.response.Body
		}
	}
	var lead [1 + binary.MaxVarintLen64]byte
	lead[0] = flags
	front := binary.AppendUvarint(lead[:1], uint64(recordSize))
	name := valueName(key, token)
	op := b.SetDeferred(len(name), len(front)+len(head)+len(body))
	copy(op.Key, name)
	n := copy(op.Value, front)
	n += copy(op.Value[n:], head)
	copy(op.Value[n:], body)
	return errors.Join(op.Finish(), b.Set(expiryName(v.due(), key, token), nil, nil))
}

// replace adds to a batch the replacement of a key's value by next, and returns the value as it is
// stored. next.answer is the response of the run that ended now, nil if it has none. A response of
// another run in the old value is kept unless it has expired: one of the two is stored in the value,
// preferably that of the record's own run, and the other one as an answer.
func replace(b *pebble.Batch, key idempotency.Key, old *value, next value, now time.Time) (*value, error) {
	var err error
	if old != nil {
		kept := old.answer.live(now)
		switch {
		case kept == nil || next.answer != nil && next.answer.token == kept.token:
		case next.answer == nil:
			next.answer = kept
		case next.record.Token == kept.token:
			err = (&value{answer: next.answer}).set(b, key, next.answer.token)
			next.answer = kept
		default:
			err = (&value{answer: kept}).set(b, key, kept.token)
		}
		if due := old.due(); due != next.due() {
			err = errors.Join(err, b.Delete(expiryName(due, key, ""), nil))
		}
	}
	return &next, errors.Join(err, next.set(b, key, ""))
}

// remove adds to a batch the removal of a key's value and answers. The expiries of the answers stay;
// the sweeper finds nothing under them.
func remove(b *pebble.Batch, key idempotency.Key, old *value) error {
	answers := append([]byte{answerTable}, key[:]...)
	end := append(bytes.Clone(answers), 0xff) // a byte that no token has
	err := errors.Join(b.Delete(valueName(key, ""), nil), b.DeleteRange(answers, end, nil))
	if old != nil {
		err = errors.Join(err, b.Delete(expiryName(old.due(), key, ""), nil))
	}
	return err
}
