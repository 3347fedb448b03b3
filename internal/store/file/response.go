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
	inFile     = 'f'
	lengthSize = 8
)

// storedResponse is what is stored of a response.
type storedResponse struct {
	until  time.Time
	inFile bool
	length uint64 // of the body that lies in a file
	form   []byte // the response as the codec writes it, or only its head
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
	if len(r.form) < 1+lengthSize {
		return nil, errCutOff
	}
	r.inFile, r.length = true, binary.BigEndian.Uint64(r.form[1:])
	r.form = r.form[1+lengthSize:]
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
	if stored.inFile {
		at := bodyFileOf(key, token, stored.until)
		var body []byte
		body, err = d.bodies.read(at, stored.length)
		if err != nil && !errors.Is(err, errBody) {
			return nil, d.writeError(err)
		}
		if err == nil {
			if response, err = idempotency.DecodeResponseParts(key, token, stored.form, body); err != nil {
				err = fmt.Errorf("%w (its body is the file %s)", err, at)
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

// bodyFilesOf returns the files in which bodies of the key lie.
func (d *database) bodyFilesOf(key idempotency.Key) (files []bodyFile, err error) {
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
		if stored, err := parseResponse(value); err == nil && stored.inFile {
			files = append(files, bodyFileOf(key, string(it.Key()[len(first):]), stored.until))
		}
	}
	return files, nil
}

// hasOwnFile reports whether the body of a response lies in a file of its own.
func hasOwnFile(r *idempotency.Response) bool { return r != nil && len(r.Body) >= ownFileBytes }

// headRoom is as large as the stored form of most responses is without the body.
const headRoom = 512

// putResponse keeps a response until the given time, without the body that lies in a
// file. withRecord says that it expires together with the record that is complete by it.
func (c change) putResponse(key idempotency.Key, token string, r *idempotency.Response, until time.Time, withRecord bool) error {
	var room [headRoom]byte // on the stack
	head := idempotency.AppendResponseHead(room[:0], key, token, r)
	name := responseName(key, token)
	own := hasOwnFile(r)
	size := momentSize + len(head) + len(r.Body)
	if own {
		size = momentSize + 1 + lengthSize + len(head)
	}
	op := c.SetDeferred(len(name), size)
	copy(op.Key, name)
	value := appendMoment(op.Value[:0], until)
	if own {
		value = binary.BigEndian.AppendUint64(append(value, inFile), uint64(len(r.Body)))
	}
	value = append(value, head...)
	if !own {
		copy(op.Value[len(value):], r.Body) // the only time that it is copied here
	}
	if err := op.Finish(); err != nil || withRecord {
		return err
	}
	return c.Set(expiryName(until, key, token), nil, nil)
}
