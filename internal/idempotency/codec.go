package idempotency

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// The stored form of records and responses, the same in every store. A record is
//
//	magic and version, 4 bytes | checksum, 8 bytes | fields
//
// and a response
//
//	magic and version, 4 bytes | checksum, 8 bytes | length of the fields, 4 bytes | fields | body
//
// The checksum covers what follows it, without the body. The last of a response's
// fields are the length and the checksum of its body, so that a store can keep the
// body elsewhere. The checksum also covers the key, and for a response the token of
// the run: a value that damage has moved to another key or token has a wrong checksum
// there.
//
// Numbers of a fixed size are big-endian. All other numbers are varints, as
// encoding/binary writes them.
const (
	recordMagic   = "ddr\x02"
	responseMagic = "dda\x02"
)

const (
	magicSize    = len(recordMagic)
	checksumSize = 8
	frameSize    = magicSize + checksumSize
	lengthSize   = 4
)

var errCutOff = errors.New("it is cut off")

// grow returns the same bytes with room for n more. Unlike slices.Grow, it takes no more
// than that, and one allocation at most in every build.
func grow(dst []byte, n int) []byte {
	if cap(dst)-len(dst) >= n {
		return dst
	}
	return append(make([]byte, 0, len(dst)+n), dst...)
}

// beginFrame appends magic and room for the checksum.
func beginFrame(dst []byte, magic string) []byte {
	dst = append(dst, magic...)
	return append(dst, make([]byte, checksumSize)...)
}

// endFrame writes the checksum of a frame that beginFrame has begun.
func endFrame(frame []byte, key *Key, token string) {
	binary.BigEndian.PutUint64(frame[magicSize:], checksum(key, token, frame[frameSize:]))
}

// ErrFormat says that another version of caddy-dedup has written a stored form.
var ErrFormat = errors.New("another version has written it")

// checkMagic returns an error for what does not begin as a stored value with this
// magic does.
func checkMagic(magic string, stored []byte) error {
	const version = magicSize - 1
	switch {
	case len(stored) < magicSize || string(stored[:version]) != magic[:version]:
		return errors.New("it was not written by caddy-dedup")
	case stored[version] != magic[version]:
		return fmt.Errorf("%w: it has format %d; this version reads format %d", ErrFormat, stored[version], magic[version])
	case len(stored) < frameSize:
		return errCutOff
	default:
		return nil
	}
}

// openFrame returns what is behind the checksum, if the checksum is right.
func openFrame(stored []byte, key *Key, token string) ([]byte, error) {
	content := stored[frameSize:]
	if binary.BigEndian.Uint64(stored[magicSize:]) != checksum(key, token, content) {
		return nil, errors.New("its checksum is wrong: it is damaged or belongs to another key")
	}
	return content, nil
}

func checksum(key *Key, token string, content []byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(key[:]) // a hash never fails
	_, _ = d.WriteString(token)
	_, _ = d.Write(content)
	return d.Sum64()
}

// fields reads numbers and lengths. After an error, which stays, all that it reads is
// zero.
type fields struct {
	rest []byte
	err  error
}

func (f *fields) fail(err error) {
	if f.err == nil {
		f.err = err
	}
	f.rest = nil
}

// bytes reads n bytes, which are part of what is read, not a copy.
func (f *fields) bytes(n int) []byte {
	if n > len(f.rest) {
		f.fail(errCutOff)
		return nil
	}
	read := f.rest[:n:n]
	f.rest = f.rest[n:]
	return read
}

// fixed reads a number of 4 or 8 bytes.
func (f *fields) fixed(size int) uint64 {
	var n uint64
	for _, b := range f.bytes(size) {
		n = n<<8 | uint64(b)
	}
	return n
}

func (f *fields) byte() byte { return byte(f.fixed(1)) }

func (f *fields) uvarint() uint64 {
	n, size := binary.Uvarint(f.rest)
	if size <= 0 {
		f.fail(errCutOff)
		return 0
	}
	f.rest = f.rest[size:]
	return n
}

// int reads a number that can be negative.
func (f *fields) int() int {
	n, size := binary.Varint(f.rest)
	switch {
	case size <= 0:
		f.fail(errCutOff)
		return 0
	case int64(int(n)) != n:
		f.fail(fmt.Errorf("the number %d in it is too large", n))
		return 0
	}
	f.rest = f.rest[size:]
	return int(n)
}

// count reads how many things follow, each of which takes at least so many bytes. So
// no damaged number makes a reader allocate much more than there is to read.
func (f *fields) count(each int) int {
	n := f.uvarint()
	if n > uint64(len(f.rest)/each) {
		f.fail(errCutOff)
		return 0
	}
	return int(n)
}

// end returns the first error. What is left unread is an error too.
func (f *fields) end(what string) error {
	if f.err == nil && len(f.rest) > 0 {
		f.fail(fmt.Errorf("%d bytes follow %s", len(f.rest), what))
	}
	return f.err
}
