package idempotency

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// The fields of a response, in their order:
//
//	flags, 1 byte | status | ID of the encryption key, if it is sealed |
//	number of header fields | number of their values |
//	each: name, number of values, values | length of the body | checksum of the body, 8 bytes
//
// Texts have their length before them. The header fields are in the order of their
// names, so that the same response always has the same form.
const (
	flagOmitted = 1 << iota
	flagFailed
	flagSealed
	unknownFlags = ^byte(flagSealed<<1 - 1)
)

// AppendResponse appends the stored form of the response of a run: what
// [AppendResponseHead] writes, and then the body.
func AppendResponse(dst []byte, key Key, token string, r *Response) []byte {
	dst = grow(dst, r.headRoom()+len(r.Body))
	dst = AppendResponseHead(dst, key, token, r)
	return append(dst, r.Body...)
}

// AppendResponseHead appends the stored form of a response without its body, for a
// store that keeps the body beside it. [DecodeResponseParts] reads both.
func AppendResponseHead(dst []byte, key Key, token string, r *Response) []byte {
	dst = grow(dst, r.headRoom())
	at := len(dst)
	dst = append(beginFrame(dst, responseMagic), make([]byte, lengthSize)...)
	dst = r.appendFields(dst)
	head := dst[at:]
	if uint64(len(head)) > math.MaxUint32 {
		panic("idempotency: a response's header of 4 GiB") // HTTP servers and clients take some MiB at most
	}
	binary.BigEndian.PutUint32(head[frameSize:], uint32(len(head)-frameSize-lengthSize))
	endFrame(head, &key, token)
	return dst
}

// headRoom is at least how many bytes the stored form takes without the body.
func (r *Response) headRoom() int {
	room := frameSize + lengthSize + 1 + 3 + textRoom(r.SealedBy) + 3*binary.MaxVarintLen32 + binary.MaxVarintLen64 + checksumSize
	for name, values := range r.Header {
		room += textRoom(name) + binary.MaxVarintLen32
		for _, value := range values {
			room += textRoom(value)
		}
	}
	return room
}

func (r *Response) appendFields(dst []byte) []byte {
	var flags byte
	if r.Omitted {
		flags |= flagOmitted
	}
	if r.Failed {
		flags |= flagFailed
	}
	if r.SealedBy != "" {
		flags |= flagSealed
	}
	dst = binary.AppendVarint(append(dst, flags), int64(r.Status))
	if r.SealedBy != "" {
		dst = appendPlain(dst, r.SealedBy)
	}
	var room [32]string
	names, total := room[:0], 0
	for name, values := range r.Header {
		names = append(names, name)
		total += len(values)
	}
	slices.Sort(names)
	dst = binary.AppendUvarint(dst, uint64(len(names)))
	dst = binary.AppendUvarint(dst, uint64(total))
	for _, name := range names {
		values := r.Header[name]
		dst = appendPlain(dst, name)
		dst = binary.AppendUvarint(dst, uint64(len(values)))
		for _, value := range values {
			dst = appendPlain(dst, value)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Body)))
	return binary.BigEndian.AppendUint64(dst, xxhash.Sum64(r.Body))
}

func appendPlain(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// DecodeResponse reads what [AppendResponse] wrote for the same key and token. The body
// is part of the stored value, not a copy.
func DecodeResponse(key Key, token string, stored []byte) (*Response, error) {
	if err := checkMagic(responseMagic, stored); err != nil {
		return nil, err
	}
	if len(stored) < frameSize+lengthSize {
		return nil, errCutOff
	}
	length := uint64(binary.BigEndian.Uint32(stored[frameSize:]))
	if length > uint64(len(stored)-frameSize-lengthSize) {
		return nil, errors.New("its head is longer than the whole")
	}
	head := frameSize + lengthSize + int(length)
	return DecodeResponseParts(key, token, stored[:head], stored[head:len(stored):len(stored)])
}

// DecodeResponseParts reads what [AppendResponseHead] wrote for the same key and token,
// and checks that this is the body that belongs to it. The body is not copied.
func DecodeResponseParts(key Key, token string, head, body []byte) (*Response, error) {
	if err := checkMagic(responseMagic, head); err != nil {
		return nil, err
	}
	content, err := openFrame(head, &key, token)
	if err != nil {
		return nil, err
	}
	f := responseFields{fields: fields{rest: content}}
	if length := f.fixed(lengthSize); f.err == nil && length != uint64(len(f.rest)) {
		return nil, fmt.Errorf("its head has %d bytes, not %d", len(f.rest), length)
	}
	r := new(Response)
	f.response(r)
	length, sum := f.uvarint(), f.fixed(checksumSize)
	if err := f.end("the response's head"); err != nil {
		return nil, err
	}
	switch {
	case length != uint64(len(body)):
		return nil, fmt.Errorf("its body has %d bytes, not %d", len(body), length)
	case sum != xxhash.Sum64(body):
		return nil, errors.New("the checksum of its body is wrong: it is damaged")
	}
	if body == nil {
		body = []byte{}
	}
	r.Body = body
	return r, nil
}

// responseFields reads the fields of a response. Its texts become parts of one string.
type responseFields struct {
	fields
	all string
}

func (f *responseFields) response(r *Response) {
	f.all = string(f.rest)
	flags := f.byte()
	if flags&unknownFlags != 0 {
		f.fail(fmt.Errorf("its flags %#x are unknown", flags&unknownFlags))
	}
	r.Omitted, r.Failed = flags&flagOmitted != 0, flags&flagFailed != 0
	if r.Status = f.int(); f.err == nil && (r.Status < 100 || r.Status > 999) {
		f.fail(fmt.Errorf("its status %d is none of HTTP", r.Status))
	}
	if flags&flagSealed != 0 {
		r.SealedBy = f.text()
	}
	names, total := f.count(2), f.count(1)
	if names == 0 || f.err != nil {
		return
	}
	r.Header = make(map[string][]string, names)
	all := make([]string, 0, total)
	for range names {
		name, values, begin := f.text(), f.count(1), len(all)
		if values > total-begin {
			f.fail(fmt.Errorf("its header has more than %d values", total))
		}
		if f.err != nil {
			return
		}
		for range values {
			all = append(all, f.text())
		}
		if _, twice := r.Header[name]; twice {
			f.fail(fmt.Errorf("its header %s stands twice", name))
		}
		r.Header[name] = nil
		if values > 0 {
			r.Header[name] = all[begin:len(all):len(all)]
		}
	}
	if len(all) != total {
		f.fail(fmt.Errorf("its header has %d values, not %d", len(all), total))
	}
}

// text reads a text, which is part of the whole string.
func (f *responseFields) text() string {
	n := f.count(1)
	at := len(f.all) - len(f.rest)
	if f.bytes(n); f.err != nil {
		return ""
	}
	return f.all[at : at+n]
}
