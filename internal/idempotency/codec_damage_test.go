package idempotency

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
)

// decodes is a stored value with its decoder, of which only the error matters.
type decodes struct {
	stored []byte
	decode func(stored []byte) error
}

func allForms() map[string]decodes {
	head := len(AppendResponseHead(nil, thisKey, thisToken, fullResponse()))
	return map[string]decodes{
		"record": {AppendRecord(nil, thisKey, fullRecord()), func(stored []byte) error {
			_, err := DecodeRecord(thisKey, stored)
			return err
		}},
		"response": {AppendResponse(nil, thisKey, thisToken, fullResponse()), func(stored []byte) error {
			_, err := DecodeResponse(thisKey, thisToken, stored)
			return err
		}},
		"response in parts": {AppendResponse(nil, thisKey, thisToken, fullResponse()), func(stored []byte) error {
			at := min(head, len(stored))
			_, err := DecodeResponseParts(thisKey, thisToken, stored[:at], stored[at:])
			return err
		}},
	}
}

func TestDecodeDamagedValues(t *testing.T) {
	for name, form := range allForms() {
		t.Run(name, func(t *testing.T) {
			if err := form.decode(form.stored); err != nil {
				t.Fatal(err)
			}
			for at := range form.stored {
				for change := 1; change < 256; change++ {
					damaged := bytes.Clone(form.stored)
					damaged[at] ^= byte(change)
					if form.decode(damaged) == nil {
						t.Fatalf("byte %d of %d changed by 0x%02x is no error", at, len(damaged), change)
					}
				}
			}
			for length := range form.stored {
				if form.decode(form.stored[:length]) == nil {
					t.Fatalf("the first %d of %d bytes are no error", length, len(form.stored))
				}
			}
			if form.decode(append(bytes.Clone(form.stored), 0)) == nil {
				t.Error("one byte more is no error")
			}
			if form.decode(nil) == nil {
				t.Error("nothing is no error")
			}
		})
	}
}

func TestDecodeAnotherVersion(t *testing.T) {
	for name, form := range allForms() {
		newer, ours := bytes.Clone(form.stored), fmt.Sprintf("format %d", form.stored[magicSize-1])
		newer[magicSize-1] = 99
		if err := form.decode(newer); err == nil || !strings.Contains(err.Error(), "format 99") || !strings.Contains(err.Error(), ours) {
			t.Errorf("%s: got %v; want both formats named", name, err)
		}
	}
}

func TestDecodeUnderAnotherKeyOrToken(t *testing.T) {
	record := AppendRecord(nil, thisKey, fullRecord())
	response := AppendResponse(nil, thisKey, thisToken, fullResponse())
	another := fullResponse()
	another.Body[0] ^= 1
	head := AppendResponseHead(nil, thisKey, thisToken, fullResponse())
	for name, err := range map[string]error{
		"a record of another key":        errorOf(DecodeRecord(otherKey, record)),
		"a response of another key":      errorOf(DecodeResponse(otherKey, thisToken, response)),
		"a response of another token":    errorOf(DecodeResponse(thisKey, otherToken, response)),
		"a response of no token":         errorOf(DecodeResponse(thisKey, "", response)),
		"a record taken for a response":  errorOf(DecodeResponse(thisKey, "", record)),
		"a response taken for a record":  errorOf(DecodeRecord(thisKey, response)),
		"a token that the key runs into": errorOf(DecodeResponse(thisKey, thisToken+"x", response)),
		"a body of another response":     errorOf(DecodeResponseParts(thisKey, thisToken, head, another.Body)),
		"a head with its body in it":     errorOf(DecodeResponseParts(thisKey, thisToken, response, nil)),
		"a head without its body":        errorOf(DecodeResponse(thisKey, thisToken, head)),
	} {
		if err == nil {
			t.Errorf("%s is no error", name)
		}
	}
}

func errorOf[T any](_ T, err error) error { return err }

// sealed returns a stored value with this content and a right checksum.
func sealed(magic string, key Key, token string, content []byte) []byte {
	out := append(append([]byte(magic), make([]byte, checksumSize)...), content...)
	seal(out, &key, token)
	return out
}

// These values have a right checksum, but content that this version would not write.
func TestDecodeInvalidContent(t *testing.T) {
	encoded := func(value any) []byte {
		content, err := cbor.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	least := func() *storedRecord { return &storedRecord{Record: Record{State: Held, Token: "t"}} }
	with := func(change func(*storedRecord)) []byte {
		record := least()
		change(record)
		return encoded(record)
	}
	for name, c := range map[string]struct {
		content []byte
		valid   bool
	}{
		"a record":                  {encoded(least()), true},
		"one that replaces another": {with(func(r *storedRecord) { r.Previous = least() }), true},
		"nothing":                   {nil, false},
		"another type":              {encoded("a text"), false},
		"too few fields":            {encoded([]string{"held", "t"}), false},
		"no state":                  {with(func(r *storedRecord) { r.Record.State = "" }), false},
		"unknown state":             {with(func(r *storedRecord) { r.Record.State = "gone" }), false},
		"no token":                  {with(func(r *storedRecord) { r.Record.Token = "" }), false},
		"a byte behind it":          {append(encoded(least()), 0), false},
		"one that replaces two": {with(func(r *storedRecord) {
			r.Previous = least()
			r.Previous.Previous = least()
		}), false},
		"an array of 2^62 elements": {[]byte("\x9b\x40\x00\x00\x00\x00\x00\x00\x00"), false},
	} {
		_, err := DecodeRecord(thisKey, sealed(recordMagic, thisKey, "", c.content))
		if (err == nil) != c.valid {
			t.Errorf("%s: got %v", name, err)
		}
	}

	const sumOfNothing = 0xef46db3751d8e999
	head := func(status, length int, sum uint64) []byte {
		return encoded(&storedHead{Response: Response{Status: status}, Length: length, Sum: sum})
	}
	for name, c := range map[string]struct {
		content []byte
		valid   bool
	}{
		"a response":              {head(200, 0, sumOfNothing), true},
		"nothing":                 {nil, false},
		"no status":               {head(0, 0, sumOfNothing), false},
		"a status above":          {head(1000, 0, sumOfNothing), false},
		"a byte behind it":        {append(head(200, 0, sumOfNothing), 0), false},
		"no body":                 {head(200, 1, sumOfNothing), false},
		"a body's wrong checksum": {head(200, 0, 1), false},
	} {
		content := binary.BigEndian.AppendUint32(nil, uint32(len(c.content)))
		_, err := DecodeResponse(thisKey, "", sealed(responseMagic, thisKey, "", append(content, c.content...)))
		if (err == nil) != c.valid {
			t.Errorf("%s: got %v", name, err)
		}
	}

	// A head that would end after the end of the value, or before its own.
	for _, length := range []uint32{1 << 31, 1<<32 - 1, 1} {
		head := sealed(responseMagic, thisKey, "", binary.BigEndian.AppendUint32(nil, length))
		if _, err := DecodeResponse(thisKey, "", head); err == nil {
			t.Errorf("a head of %d bytes in none is no error", length)
		}
		if _, err := DecodeResponseParts(thisKey, "", head, nil); err == nil {
			t.Errorf("in parts, a head of %d bytes in none is no error", length)
		}
	}
}
