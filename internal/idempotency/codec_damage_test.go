package idempotency

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
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

func TestDamageIsAnError(t *testing.T) {
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

func TestAnotherVersionIsNamed(t *testing.T) {
	for name, form := range allForms() {
		newer := bytes.Clone(form.stored)
		newer[magicSize-1] = 7
		if err := form.decode(newer); err == nil || !strings.Contains(err.Error(), "format 7") || !strings.Contains(err.Error(), "format 2") {
			t.Errorf("%s: got %v; want both formats named", name, err)
		}
	}
}

func TestForeignValuesAreErrors(t *testing.T) {
	for _, foreign := range []string{"", "x", "ddr", "dda\x02", `{"state":"complete"}`, strings.Repeat("\x00", 100)} {
		if r, err := DecodeRecord(thisKey, []byte(foreign)); err == nil {
			t.Errorf("%q is the record %+v", foreign, r)
		}
		if r, err := DecodeResponse(thisKey, thisToken, []byte(foreign)); err == nil {
			t.Errorf("%q is the response %+v", foreign, r)
		}
	}
}

func TestValueOfAnotherOwnerIsAnError(t *testing.T) {
	record := AppendRecord(nil, thisKey, fullRecord())
	response := AppendResponse(nil, thisKey, thisToken, fullResponse())
	another := fullResponse()
	another.Body[0] ^= 1
	head := AppendResponseHead(nil, thisKey, thisToken, fullResponse())
	for name, err := range map[string]error{
		"a record of another key":        second(DecodeRecord(otherKey, record)),
		"a response of another key":      second(DecodeResponse(otherKey, thisToken, response)),
		"a response of another token":    second(DecodeResponse(thisKey, otherToken, response)),
		"a response of no token":         second(DecodeResponse(thisKey, "", response)),
		"a record taken for a response":  second(DecodeResponse(thisKey, "", record)),
		"a response taken for a record":  second(DecodeRecord(thisKey, response)),
		"a token that the key runs into": second(DecodeResponse(thisKey, thisToken+"x", response)),
		"a body of another response":     second(DecodeResponseParts(thisKey, thisToken, head, another.Body)),
		"a head with its body in it":     second(DecodeResponseParts(thisKey, thisToken, response, nil)),
		"a head without its body":        second(DecodeResponse(thisKey, thisToken, head)),
	} {
		if err == nil {
			t.Errorf("%s is no error", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// sealed returns a stored value with this content and a right checksum.
func sealed(magic string, key Key, token string, content []byte) []byte {
	out := append(beginFrame(nil, magic), content...)
	endFrame(out, &key, token)
	return out
}

// The checksum of these values is right, but this version would not write what is
// behind it.
func TestWrongContentIsAnError(t *testing.T) {
	const (
		least    = "\x04\x00\x00\x04t"         // held, nothing more, no attempt, the token "t"
		replaces = "\x01\x80\x80\x01\x00\x04t" // in flight, and replaces what follows
		uuid     = "\x01\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"
		huge     = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" // 2^64-1
	)
	for name, c := range map[string]struct {
		content string
		valid   bool
	}{
		"a record":                      {least, true},
		"one with a UUID":               {"\x04\x02\x00\x04t" + uuid, true},
		"one that replaces another":     {replaces + "\x02\x00\x00\x04u", true},
		"nothing":                       {"", false},
		"no state":                      {"\x00\x00\x00\x04t", false},
		"unknown state":                 {"\x05\x00\x00\x04t", false},
		"unknown field":                 {"\x04\x80\x80\x02\x00\x04t", false},
		"no token":                      {"\x04\x00\x00\x00", false},
		"a byte behind it":              {least + "\x00", false},
		"no replaced record":            {replaces, false},
		"one that replaces two":         {replaces + replaces + least, false},
		"a text of unknown form":        {"\x04\x00\x00\x06t", false},
		"a UUID with a length":          {"\x04\x02\x00\x04t\x05" + uuid[1:], false},
		"a text of 2^62 bytes":          {"\x04\x00\x00\xfc\xff\xff\xff\xff\xff\xff\xff\xff\x01t", false},
		"a hash behind 2^62 bytes":      {"\x04\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01t", false},
		"half a hash":                   {"\x04\x02\x00\x04t\x030123456789abcdef", false},
		"a number of more than 64 bits": {"\x04\x00\xff" + huge + "\x04t", false},
	} {
		_, err := DecodeRecord(thisKey, sealed(recordMagic, thisKey, "", []byte(c.content)))
		if (err == nil) != c.valid {
			t.Errorf("%s: got %v", name, err)
		}
	}

	const end = "\x00\xef\x46\xdb\x37\x51\xd8\xe9\x99" // no body, and the checksum of nothing
	for name, c := range map[string]struct {
		content string
		valid   bool
	}{
		"a response":               {"\x00\x90\x03\x00\x00" + end, true},
		"one with a field":         {"\x00\x90\x03\x01\x01\x01A\x01\x01b" + end, true},
		"nothing":                  {"", false},
		"an unknown flag":          {"\x08\x90\x03\x00\x00" + end, false},
		"no status":                {"\x00\x00\x00\x00" + end, false},
		"a status below":           {"\x00\xc6\x01\x00\x00" + end, false},
		"a status above":           {"\x00\xd0\x0f\x00\x00" + end, false},
		"a byte behind it":         {"\x00\x90\x03\x00\x00" + end + "\x00", false},
		"no body's length":         {"\x00\x90\x03\x00\x00", false},
		"no body":                  {"\x00\x90\x03\x00\x00\x01" + end[1:], false},
		"a body's wrong checksum":  {"\x00\x90\x03\x00\x00" + end[:8] + "\x98", false},
		"2^64 fields":              {"\x00\x90\x03" + huge + "\x00" + end, false},
		"2^64 values":              {"\x00\x90\x03\x01" + huge + "\x01A\x01\x01b" + end, false},
		"2^64 values of a field":   {"\x00\x90\x03\x01\x01\x01A" + huge + "\x01b" + end, false},
		"more fields than it says": {"\x00\x90\x03\x00\x01\x01A\x01\x01b" + end, false},
		"fewer values":             {"\x00\x90\x03\x01\x02\x01A\x01\x01b" + end, false},
		"more values":              {"\x00\x90\x03\x01\x00\x01A\x01\x01b" + end, false},
		"a field twice":            {"\x00\x90\x03\x02\x02\x01A\x01\x01b\x01A\x01\x01b" + end, false},
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
