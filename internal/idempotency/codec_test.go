package idempotency

import (
	"bytes"
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
		State: InFlight, Token: thisToken, ExecutionID: "0199b8a2-7d1c-7000-8000-000000000001", Attempt: 3,
		Fingerprint: "body:" + strings.Repeat("00ff", 16), Hold: true, Origin: Origin{
			Provider: "github", DeliveryID: "72d3162e <é>", Parts: []string{"second", ""}, Method: "POST", Host: "example.com:8443", Path: "/hooks/%2F", Scope: []string{"/namespace=shop", ""}, ScopeHash: &Key{1, 31: 2},
		}, Status: 201, LargeBody: 70_000, Location: "/runs/7", SealedBy: "00ff00ff", Sealed: []byte("\x00sealed\xff"), Reason: "the upstream answered with 500",
		Claimed:          time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC),
		Ended:            time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC),
		LeaseUntil:       time.Date(2026, 1, 2, 3, 4, 35, 0, time.UTC),
		Expires:          time.Date(2026, 1, 9, 3, 4, 6, 999_000_000, time.UTC),
		ReleasedAttempts: 1,
		ParentID:         "0199b8a2-7d1c-7000-8000-000000000000",
		Previous: &Record{
			State: Complete, Token: "earlier", ExecutionID: "0199b8a2-7d1c-7000-8000-000000000000", Attempt: 2, Status: 200,
			Expires: time.Date(2026, 1, 9, 3, 4, 6, 0, time.UTC),
		},
		PrevToken: "before",
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
	records := map[string]*Record{
		"all fields": fullRecord(),
		"least":      {State: InFlight, Token: "t"},
		"released":   {State: Released, Token: "t", Attempt: 1, Status: 503},
		"held":       {State: Held, Token: "t", Attempt: 1, Hold: true},
		"long texts": {State: Held, Token: strings.Repeat("t", 300), Origin: Origin{DeliveryID: strings.Repeat("é", 1<<16)}},
		"any bytes":  {State: Held, Token: "t", Fingerprint: "\xff", Origin: Origin{DeliveryID: "é\xff\x00"}},
		"numbers":    {State: Complete, Token: "t", Attempt: -1, ReleasedAttempts: 1 << 30, Status: 999},
		"times": {
			State: Complete, Token: "t", Ended: time.UnixMilli(-1).UTC(),
			LeaseUntil: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), Expires: time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC),
		},
	}
	// Each field by itself, so that none hides behind another.
	full := reflect.ValueOf(*fullRecord())
	for i := 1; i < full.NumField(); i++ { // the first one is for the encoding
		r := &Record{State: Complete, Token: "t"}
		reflect.ValueOf(r).Elem().Field(i).Set(full.Field(i))
		records["with "+full.Type().Field(i).Name] = r
	}
	for name, want := range records {
		t.Run(name, func(t *testing.T) {
			before := fmt.Sprintf("%+v", want)
			got, err := DecodeRecord(thisKey, AppendRecord(nil, thisKey, want))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("got  %+v\nwant %+v", got, want)
			}
			if fmt.Sprintf("%+v", want) != before {
				t.Fatal("encoding changed the record")
			}
		})
	}
}

// Times are kept in whole milliseconds, in UTC.
func TestPrecisionOfTimes(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6_789_012, time.FixedZone("there", 3600))
	r, err := DecodeRecord(thisKey, AppendRecord(nil, thisKey, &Record{State: Held, Token: "t", Claimed: at, Expires: at}))
	if err != nil {
		t.Fatal(err)
	}
	if want := time.Date(2026, 1, 2, 2, 4, 5, 6_000_000, time.UTC); r.Claimed != want || r.Expires != want {
		t.Errorf("%v came back as %v and %v, want %v", at, r.Claimed, r.Expires, want)
	}
}

// A new field of Record or Response must be in the round trip above.
func TestRoundTripHasEveryField(t *testing.T) {
	for _, full := range []any{*fullRecord(), *fullResponse()} {
		v := reflect.ValueOf(full)
		for i := 1; i < v.NumField(); i++ { // the first one is for the encoding
			field := v.Type().Field(i).Name
			if v.Field(i).IsZero() && field != "Omitted" && field != "Failed" {
				t.Errorf("%s.%s is not tried", v.Type().Name(), field)
			}
		}
	}
}

func TestResponseRoundTrip(t *testing.T) {
	many := make(http.Header)
	for i := range 100 {
		many[fmt.Sprint("X-", i)] = []string{fmt.Sprint(i), ""}
	}
	for name, want := range map[string]*Response{
		"whole":       fullResponse(),
		"no body":     {Status: 204, Body: []byte{}},
		"omitted":     {Status: 200, Header: http.Header{"A": {"b"}}, Omitted: true, Body: []byte{}},
		"failed":      {Status: 502, Failed: true, Body: []byte{}},
		"large":       {Status: 200, Body: bytes.Repeat([]byte("0123456789abcdef"), 1<<12)},
		"many fields": {Status: 999, Header: many, Body: []byte("x")},
		"long value":  {Status: 100, Header: http.Header{"A": {strings.Repeat("\xff", 1<<17)}}, Body: []byte("x")},
	} {
		t.Run(name, func(t *testing.T) {
			before := fmt.Sprintf("%+v", want)
			stored := AppendResponse(nil, thisKey, thisToken, want)
			head := AppendResponseHead(nil, thisKey, thisToken, want)
			if !bytes.Equal(stored, append(bytes.Clone(head), want.Body...)) {
				t.Fatal("it is not its head and its body")
			}
			whole, err := DecodeResponse(thisKey, thisToken, stored)
			if err != nil {
				t.Fatal(err)
			}
			parts, err := DecodeResponseParts(thisKey, thisToken, head, want.Body)
			if err != nil {
				t.Fatal(err)
			}
			for how, got := range map[string]*Response{"whole": whole, "in parts": parts} {
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("%s: got  %+v\nwant %+v", how, got, want)
				}
			}
			if fmt.Sprintf("%+v", want) != before {
				t.Fatal("encoding changed the response")
			}
			for name := range whole.Header {
				_ = append(whole.Header[name], "appended")
			}
			if !reflect.DeepEqual(whole, want) {
				t.Fatal("appending to one header field changes another")
			}
		})
	}
}

func TestAppendToExistingBytes(t *testing.T) {
	before := []byte("before")
	record := AppendRecord(bytes.Clone(before), thisKey, fullRecord())
	response := AppendResponse(bytes.Clone(before), thisKey, thisToken, fullResponse())
	for name, err := range map[string]error{
		"record":   errorOf(DecodeRecord(thisKey, bytes.TrimPrefix(record, before))),
		"response": errorOf(DecodeResponse(thisKey, thisToken, bytes.TrimPrefix(response, before))),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecodeDoesNotCopyBody(t *testing.T) {
	stored := AppendResponse(nil, thisKey, thisToken, fullResponse())
	r, err := DecodeResponse(thisKey, thisToken, stored)
	if err != nil {
		t.Fatal(err)
	}
	if &r.Body[len(r.Body)-1] != &stored[len(stored)-1] {
		t.Error("the body was copied")
	}
	body := fullResponse().Body
	r, err = DecodeResponseParts(thisKey, thisToken, AppendResponseHead(nil, thisKey, thisToken, fullResponse()), body)
	if err != nil {
		t.Fatal(err)
	}
	if &r.Body[0] != &body[0] {
		t.Error("in parts, the body was copied")
	}
}
