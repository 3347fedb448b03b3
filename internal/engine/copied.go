package engine

import (
	"bytes"
	"slices"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/bytequeue"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// copyOf is whose copy it is. Two stores may have a record of the same key.
type copyOf struct {
	owner *ownCopies
	key   idempotency.Key
}

// copied is a record with its response, as the store had it when it was asked. Only its
// place in the ring is changed.
type copied struct {
	// before and after are its neighbours in the ring, and used is the count of uses when it
	// was last used: under the lock.
	before, after *copied
	used          uint64
	// packed says that it was found among the encoded copies, at this place. It is in no ring
	// then, and its bytes are the finder's own.
	packed bool
	at     bytequeue.Position

	of copyOf
	// asked is when the store was asked that said so.
	asked instant
	// life is how much of the retention was left then. It is rather too short than too
	// long: the store's clock was read later.
	life time.Duration
	size int64
	copyForm
}

// copyForm is what is copied, in one of two forms. The copy of a run's end is encoded until
// its first duplicate: the record and the response are about 25 objects, which the garbage
// collector would have to look at in each of its cycles. What a duplicate has been answered
// with is decoded.
type copyForm struct {
	record   *idempotency.Record // nil if it is encoded
	response *idempotency.Response

	// encoded is the stored form of the record, then that of the response without its body,
	// and then the body, unless that is large. They end here.
	encoded            []byte
	recordEnd, headEnd int
	// large is the body of the response itself, if it is large.
	large []byte
}

// roomToEncode is enough for a record and the header of most responses, in bytes.
const roomToEncode = 2 << 10

// encodedForm is the stored form of a record, which ends here, and then that of a response
// without its body.
type encodedForm struct {
	parts     []byte
	recordEnd int
}

// encode returns the encoded form, in this room where it is enough.
func encode(room []byte, key idempotency.Key, record *idempotency.Record, response *idempotency.Response) encodedForm {
	head := *response
	head.Body = nil // its checksum is not needed here
	parts := idempotency.AppendRecord(room, key, record)
	return encodedForm{idempotency.AppendResponseHead(parts, key, record.Token, &head), len(parts)}
}

// withLarge returns the form of a copy with a large body.
func (f encodedForm) withLarge(body []byte) copyForm {
	return copyForm{encoded: bytes.Clone(f.parts), recordEnd: f.recordEnd, headEnd: len(f.parts), large: body}
}

// decodeRecord returns the record alone.
func (f *copyForm) decodeRecord(key idempotency.Key) (*idempotency.Record, error) {
	if f.record != nil {
		return f.record, nil
	}
	return idempotency.DecodeRecord(key, f.encoded[:f.recordEnd])
}

// decode returns what was encoded, in decoded form. Nothing of it is part of the encoded form.
func (f *copyForm) decode(key idempotency.Key) (copyForm, error) {
	record, err := f.decodeRecord(key)
	if err != nil {
		return copyForm{}, err
	}
	response, err := idempotency.DecodeResponseParts(key, record.Token, f.encoded[f.recordEnd:f.headEnd], nil)
	if err != nil {
		return copyForm{}, err
	}
	switch small := f.encoded[f.headEnd:]; {
	case f.large != nil:
		response.Body = f.large
	case len(small) > 0:
		response.Body = slices.Clone(small)
	}
	return copyForm{record: record, response: response}, nil
}

// now is the time by the clock of the store, when the copy has this age. The copy is decoded.
func (c *copied) now(age time.Duration) time.Time { return c.record.Expires.Add(age - c.life) }

// instant is a time by both clocks: Go's monotonic one, from a time on that does not matter,
// and the wall clock, as Unix nanoseconds.
type instant struct {
	monotonic time.Duration
	wall      int64
}

var someInstant = time.Now()

func instantOf(t time.Time) instant { return instant{t.Sub(someInstant), t.UnixNano()} }

// age returns the time that has passed since. The monotonic clock may stand still while the
// machine sleeps, and the wall clock may be set back.
func (then instant) age() time.Duration {
	now := instantOf(time.Now())
	return max(now.monotonic-then.monotonic, time.Duration(now.wall-then.wall))
}

// What the parts of a copy take besides their texts, in bytes: rather too much than too
// little. TestCopiesTakeWhatTheySay compares it with the heap.
const (
	sizeOfLarge   = 370 // copied, slots of the map
	sizeOfDecoded = 880 // these, Record, Response
	sizeOfField   = 108 // name and values in a map, with their lengths in the stored form
	sizeOfValue   = 17
)

// sizeOf returns how many bytes a copy takes on the heap.
func sizeOf(form copyForm) int64 {
	if form.record == nil {
		return sizeOfLarge + int64(allocated(cap(form.encoded))+allocated(cap(form.large)))
	}
	record, response := form.record, form.response
	n := sizeOfDecoded + allocated(cap(response.Body)) +
		len(record.Token) + len(record.ExecutionID) + len(record.ParentID) + len(record.Fingerprint) +
		len(record.DeliveryID) + len(record.Host) + len(record.Path) + len(record.SealedBy) + len(record.Sealed)
	slots := 0
	for _, values := range response.Header {
		n += sizeOfField
		slots += cap(values)
	}
	return int64(n + allocated(textsOf(response)) + allocated(sizeOfValue*slots))
}

// textsOf returns how many bytes the texts of the header are.
func textsOf(response *idempotency.Response) (n int) {
	for name, values := range response.Header {
		n += len(name)
		for _, value := range values {
			n += len(value)
		}
	}
	return n
}

// allocated returns how many bytes the allocator takes at most for so many: up to an eighth
// more, or whole pages.
func allocated(n int) int {
	const page = 8 << 10
	if n > 4*page {
		return (n + page - 1) / page * page
	}
	return n + n/8
}

// sizeOfRead is sizeOf for what a store has read. Of a response that was stored in one piece,
// the body is part of all of it: the header's texts are then there once more.
func sizeOfRead(record *idempotency.Record, response *idempotency.Response) int64 {
	head, body := textsOf(response), cap(response.Body)
	return sizeOf(copyForm{record: record, response: response}) + int64(allocated(head+body)-allocated(body)+allocated(head)-head)
}
