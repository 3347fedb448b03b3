package idempotency

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

var (
	thisKey  = Key{1, 2, 3}
	otherKey = Key{1, 2, 4}
)

const (
	thisToken  = "token-a"
	otherToken = "token-b"
)

func fullRecord() *Record {
	return &Record{
		State: Complete, Token: thisToken, ExecutionID: "0199b8a2-7d1c-7000-8000-000000000001", Attempt: 3,
		Fingerprint: "body:00ff", Hold: true, Origin: Origin{Provider: "github", DeliveryID: "72d3162e <é>"}, Status: 201, SealedBy: "00ff00ff",
		Claimed:       time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC),
		Ended:         time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC),
		LeaseUntil:    time.Date(2026, 1, 2, 3, 4, 35, 0, time.UTC),
		Expires:       time.Date(2026, 1, 9, 3, 4, 6, 999_000_000, time.UTC),
		FreedAttempts: 1,
		ParentID:      "0199b8a2-7d1c-7000-8000-000000000000",
		Replaces:      &Record{State: Complete, Token: "earlier", Attempt: 2},
		Follows:       "earlier",
	}
}

func fullResponse() *Response {
	return &Response{
		Status: 201,
		Header: map[string][]string{
			"Content-Type": {"application/json"}, "X-Two": {"a", "b"}, "X-Empty": {""}, "X-Removed": nil,
			"X-Markup": {`<a href="?b&c">`}, "X-Utf8": {"schlüssel"}, "X-Latin1": {"caf\xe9", "\xff\x80"},
		},
		SealedBy: "00ff00ff",
		Body:     []byte("{\"id\":1}\x00\xff"),
	}
}

func TestRecordRoundTrip(t *testing.T) {
	for name, want := range map[string]*Record{
		"all fields": fullRecord(),
		"least":      {State: InFlight, Token: "t"},
		"released":   {State: Released, Token: "t", Attempt: 1, Status: 503},
		"held":       {State: Held, Token: "t", Attempt: 1, Hold: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := DecodeRecord(thisKey, EncodeRecord(thisKey, want))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

// Whoever adds a field to Record or Response must add it to the round trip above.
func TestRoundTripHasEveryField(t *testing.T) {
	for _, full := range []any{*fullRecord(), *fullResponse()} {
		v := reflect.ValueOf(full)
		for i := range v.NumField() {
			field := v.Type().Field(i).Name
			if v.Field(i).IsZero() && field != "Omitted" && field != "Failed" {
				t.Errorf("%s.%s is not tried", v.Type().Name(), field)
			}
		}
	}
}

func TestResponseRoundTrip(t *testing.T) {
	for name, want := range map[string]*Response{
		"whole":   fullResponse(),
		"no body": {Status: 204, Body: []byte{}},
		"omitted": {Status: 200, Header: http.Header{"A": {"b"}}, Omitted: true, Body: []byte{}},
		"failed":  {Status: 502, Failed: true, Body: []byte{}},
		"large":   {Status: 200, Body: bytes.Repeat([]byte("0123456789abcdef"), 1<<12)},
	} {
		t.Run(name, func(t *testing.T) {
			before := fmt.Sprintf("%+v", want)
			got, err := DecodeResponse(thisKey, thisToken, EncodeResponse(thisKey, thisToken, want))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("got  %+v\nwant %+v", got, want)
			}
			if fmt.Sprintf("%+v", want) != before {
				t.Fatal("encoding changed the response")
			}
		})
	}
}

// decodes is a stored value with its decoder, of which only the error matters.
type decodes struct {
	stored []byte
	decode func(stored []byte) error
}

func bothForms() map[string]decodes {
	return map[string]decodes{
		"record": {EncodeRecord(thisKey, fullRecord()), func(stored []byte) error {
			_, err := DecodeRecord(thisKey, stored)
			return err
		}},
		"response": {EncodeResponse(thisKey, thisToken, fullResponse()), func(stored []byte) error {
			_, err := DecodeResponse(thisKey, thisToken, stored)
			return err
		}},
	}
}

func TestDamageIsAnError(t *testing.T) {
	for name, form := range bothForms() {
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
	for name, form := range bothForms() {
		newer := bytes.Clone(form.stored)
		newer[len(recordMagic)-1] = 7
		if err := form.decode(newer); err == nil || !strings.Contains(err.Error(), "format 7") || !strings.Contains(err.Error(), "format 1") {
			t.Errorf("%s: got %v; want both formats named", name, err)
		}
	}
}

func TestForeignValuesAreErrors(t *testing.T) {
	for _, foreign := range []string{"", "x", "dedup", "dedup-", `{"state":"complete"}`, strings.Repeat("\x00", 100)} {
		if r, err := DecodeRecord(thisKey, []byte(foreign)); err == nil {
			t.Errorf("%q is the record %+v", foreign, r)
		}
		if r, err := DecodeResponse(thisKey, thisToken, []byte(foreign)); err == nil {
			t.Errorf("%q is the response %+v", foreign, r)
		}
	}
}

func TestValueOfAnotherOwnerIsAnError(t *testing.T) {
	record := EncodeRecord(thisKey, fullRecord())
	response := EncodeResponse(thisKey, thisToken, fullResponse())
	for name, err := range map[string]error{
		"a record of another key":         second(DecodeRecord(otherKey, record)),
		"a response of another key":       second(DecodeResponse(otherKey, thisToken, response)),
		"a response of another token":     second(DecodeResponse(thisKey, otherToken, response)),
		"a response of no token":          second(DecodeResponse(thisKey, "", response)),
		"a record taken for a response":   second(DecodeResponse(thisKey, "", record)),
		"a response taken for a record":   second(DecodeRecord(thisKey, response)),
		"a token that the key runs into":  second(DecodeResponse(thisKey, thisToken+"x", response)),
		"a record in a response's clothe": second(DecodeResponse(thisKey, "", sealed(responseMagic, thisKey[:], `{"state":"held","token":"a"}`, ""))),
	} {
		if err == nil {
			t.Errorf("%s is no error", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// sealed returns a stored value with this head and body, and a right checksum.
func sealed(magic string, owner []byte, head, body string) []byte {
	content := binary.BigEndian.AppendUint32(nil, uint32(len(head)))
	content = append(append(content, head...), body...)
	out := binary.BigEndian.AppendUint64([]byte(magic), checksum(owner, content))
	return append(out, content...)
}

// The checksum of these values is right, but this version would not write what is
// behind it.
func TestWrongContentIsAnError(t *testing.T) {
	owner := thisKey[:]
	records := map[string]string{
		"a record":        `{"state":"held","token":"a","execution_id":"","attempt":0}`,
		"not JSON":        `state`,
		"nothing":         ``,
		"another type":    `[]`,
		"null":            `null`,
		"unknown state":   `{"state":"open","token":"a"}`,
		"no state":        `{"token":"a"}`,
		"no token":        `{"state":"held"}`,
		"unknown member":  `{"state":"held","token":"a","colour":"red"}`,
		"a number's text": `{"state":"held","token":"a","attempt":"1"}`,
	}
	for name, head := range records {
		_, err := DecodeRecord(thisKey, sealed(recordMagic, owner, head, ""))
		if valid := name == "a record"; (err == nil) != valid {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := DecodeRecord(thisKey, sealed(recordMagic, owner, records["a record"], "x")); err == nil {
		t.Error("a record with a body is no error")
	}

	responses := map[string]string{
		"a response":                  `{"status":200}`,
		"not JSON":                    `200`,
		"no status":                   `{}`,
		"a status below":              `{"status":99}`,
		"a status above":              `{"status":1000}`,
		"unknown member":              `{"status":200,"body":"x"}`,
		"a header of another type":    `{"status":200,"header":{"A":"b"}}`,
		"a character that is no byte": `{"status":200,"header":{"A":["€"]}}`,
	}
	for name, head := range responses {
		_, err := DecodeResponse(thisKey, "", sealed(responseMagic, owner, head, "body"))
		if valid := name == "a response"; (err == nil) != valid {
			t.Errorf("%s: got %v", name, err)
		}
	}

	// A head that would end after the end of the value.
	content := binary.BigEndian.AppendUint32(nil, 1<<31)
	long := append(binary.BigEndian.AppendUint64([]byte(recordMagic), checksum(owner, content)), content...)
	if _, err := DecodeRecord(thisKey, long); err == nil {
		t.Error("a head of 2 GiB in 4 bytes is no error")
	}
}

func TestBodyIsPartOfTheStoredValue(t *testing.T) {
	stored := EncodeResponse(thisKey, thisToken, fullResponse())
	r, err := DecodeResponse(thisKey, thisToken, stored)
	if err != nil {
		t.Fatal(err)
	}
	if &r.Body[len(r.Body)-1] != &stored[len(stored)-1] {
		t.Error("the body was copied")
	}
}
