package file

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// inFile says that the body lies in a file. It stands where else the codec's magic
	// begins, with another byte.
	inFile = 'f'
	// placeSize is what follows: the segment, where in it the body begins, and its length.
	placeSize = 3 * 8
)

// storedResponse is what is stored of a response.
type storedResponse struct {
	until time.Time
	body  *bodyPlace // of the body that lies in a segment
	form  []byte     // the response as the codec writes it, or only its head
}

// parseResponse reads what putResponse wrote.
func parseResponse(stored []byte) (*storedResponse, error) {
	if len(stored) < momentSize {
		return nil, errCutOff
	}
	r := &storedResponse{until: moment(stored), form: stored[momentSize:]}
	if len(r.form) == 0 || r.form[0] != inFile {
		return r, nil
	}
	if len(r.form) < 1+placeSize {
		return nil, errCutOff
	}
	place := r.form[1:]
	r.body = &bodyPlace{
		bucket: bucketOf(r.until), segment: binary.BigEndian.Uint64(place),
		at: int64(binary.BigEndian.Uint64(place[8:])), length: binary.BigEndian.Uint64(place[16:]), //nolint:gosec // below 0 it is refused where it is read
	}
	r.form = r.form[1+placeSize:]
	return r, nil
}

var errCutOff = errors.New("it is cut off")

// storedResponse returns what is stored of the response of the run with the token, nil
// if there is nothing.
func (d *database) storedResponse(key idempotency.Key, token string) (*storedResponse, error) {
	value, err := d.get(responseName(key, token))
	if err != nil {
		return nil, d.readError("response", key, err)
	}
	if value == nil {
		return nil, nil
	}
	stored, err := parseResponse(value)
	if err != nil {
		return nil, d.unreadable("response", key, err)
	}
	return stored, nil
}

// response returns the response of the run with the token, nil if there is none, or none
// any more.
func (d *database) response(key idempotency.Key, token string, now time.Time) (*idempotency.Response, error) {
	stored, err := d.storedResponse(key, token)
	if err != nil || stored == nil || !now.Before(stored.until) {
		return nil, err
	}
	var response *idempotency.Response
	if stored.body != nil {
		var body []byte
		body, err = d.bodies.read(*stored.body)
		if err != nil && !errors.Is(err, errBody) {
			return nil, d.writeError(err)
		}
		if err == nil {
			if response, err = idempotency.DecodeResponseParts(key, token, stored.form, body); err != nil {
				err = fmt.Errorf("%w (its body is in the file %s)", err, stored.body)
			}
		}
	} else {
		response, err = idempotency.DecodeResponse(key, token, stored.form)
	}
	if err != nil {
		return nil, d.unreadable("response", key, err)
	}
	return response, nil
}

// bodiesOf returns where large bodies of the key lie.
func (d *database) bodiesOf(key idempotency.Key) (places []bodyPlace, err error) {
	defer func() {
		if isDamage(err) {
			err = nil // they go with their buckets
		} else if err != nil {
			err = d.listError(err)
		}
	}()
	defer rescue(&err)
	first, last := responsesOf(key)
	it, err := d.db.NewIter(&pebble.IterOptions{LowerBound: first, UpperBound: last})
	if err != nil {
		return nil, err
	}
	defer closeIterator(it, &err)
	for valid := it.First(); valid; valid = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			continue // it goes with its bucket
		}
		if stored, err := parseResponse(value); err == nil && stored.body != nil {
			places = append(places, *stored.body)
		}
	}
	return places, nil
}

// isLarge reports whether the body of a response lies in a segment.
func isLarge(r *idempotency.Response) bool { return r != nil && len(r.Body) >= largeBytes }

// headRoom is as large as the stored form of most responses is without the body.
const headRoom = 512

// putResponse keeps a response until the given time, without a body that lies in a segment
// (nil: in none). withRecord says that it expires together with the record that is complete
// by it.
func (c change) putResponse(key idempotency.Key, token string, r *idempotency.Response, body *newBody, until time.Time, withRecord bool) error {
	var room [headRoom]byte // on the stack
	head := idempotency.AppendResponseHead(room[:0], key, token, r)
	name := responseName(key, token)
	size := momentSize + len(head) + len(r.Body)
	if body != nil {
		size = momentSize + 1 + placeSize + len(head)
	}
	op := c.SetDeferred(len(name), size)
	copy(op.Key, name)
	value := appendMoment(op.Value[:0], until)
	if body != nil {
		value = binary.BigEndian.AppendUint64(append(value, inFile), body.bodyPlace.segment)
		value = binary.BigEndian.AppendUint64(value, uint64(body.at)) //nolint:gosec // it is an offset
		value = binary.BigEndian.AppendUint64(value, body.length)
	}
	value = append(value, head...)
	if body == nil {
		copy(op.Value[len(value):], r.Body) // the only time that it is copied here
	}
	if err := op.Finish(); err != nil || withRecord {
		return err
	}
	return c.Set(expiryName(until, key, token), nil, nil)
}
