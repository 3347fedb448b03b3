package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"
)

// The stored form must stay as it is: another version reads what this one has written.
// Whoever changes it must change the version in the magic.
func TestStoredForm(t *testing.T) {
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"record": {AppendRecord(nil, thisKey, fullRecord()), `
646472029ec833b1db25ef2701ffff01061c746f6b656e2d61010199b8a27d1c7000800000000000000116626f64793a
00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff18676974687562343732643331363265
203cc3a93e203030666630306666010199b8a27d1c70008000000000000000186265666f72658e99a6e5b733f0a0a6e5
b733b883a8e5b733d7b0d885ba33920302028230041c6561726c696572010199b8a27d1c70008000000000000000f0a8
d885ba339003`},
		"response": {AppendResponse(nil, thisKey, thisToken, fullResponse()), `
64646102dfea5ce3f52db7f90000009504920308303066663030666607080c436f6e74656e742d547970650110617070
6c69636174696f6e2f6a736f6e07582d456d707479010008582d4c6174696e310204636166e902ff8008582d4d61726b
7570010f3c6120687265663d223f622663223e09582d52656d6f7665640005582d54776f020161016206582d55746638
010a7363686cc3bc7373656c0a7488a41e49a4e5587b226964223a317d00ff`},
	} {
		if got := hex.EncodeToString(c.got); got != strings.ReplaceAll(c.want, "\n", "") {
			t.Errorf("%s: got\n%s", name, got)
		}
	}
}

// usualRecord is a complete record as a webhook with a body's fingerprint has one.
func usualRecord() *Record {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &Record{
		State: Complete, Token: "ABCDEFGHIJKLMNOPQRSTUVWXYZ", ExecutionID: "0199b8a2-7d1c-7000-8000-000000000001", Attempt: 1,
		Fingerprint: "body:" + strings.Repeat("00ff", 16), Status: 201,
		Origin:  Origin{Provider: "github", DeliveryID: "72d3162e-cc78-11e3-81ab-4c9367dc0958"},
		Claimed: now, Ended: now.Add(time.Second), Expires: now.Add(24 * time.Hour),
	}
}

// usualResponse is a response of 512 bytes.
func usualResponse() *Response {
	return &Response{
		Status: 201,
		Header: map[string][]string{"Content-Type": {"application/json"}, "Location": {"/orders/17"}, "Etag": {`"17"`}},
		Body:   []byte(strings.Repeat("x", 512)),
	}
}

func TestBytesTaken(t *testing.T) {
	r := usualResponse()
	for what, c := range map[string]struct{ got, most int }{
		"a record":                           {len(AppendRecord(nil, thisKey, usualRecord())), 145},
		"a response, without its own bytes":  {len(AppendResponse(nil, thisKey, thisToken, r)) - len(r.Body) - len("Content-Typeapplication/jsonLocation/orders/17Etag\"17\""), 40},
		"the least record, with its token":   {len(AppendRecord(nil, thisKey, &Record{State: Held, Token: "t"})), 17},
		"the least response, without a body": {len(AppendResponse(nil, thisKey, thisToken, &Response{Status: 204})), 30},
	} {
		if c.got > c.most {
			t.Errorf("%s takes %d bytes, want at most %d", what, c.got, c.most)
		}
	}
}

func TestAllocations(t *testing.T) {
	record, response := usualRecord(), usualResponse()
	storedRecord := AppendRecord(nil, thisKey, record)
	storedResponse := AppendResponse(nil, thisKey, thisToken, response)
	room := make([]byte, 0, 4<<10)
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for what, c := range map[string]struct {
		most float64
		do   func()
	}{
		"a record into room that is there":   {0, func() { AppendRecord(room, thisKey, record) }},
		"a record into new room":             {1, func() { AppendRecord(nil, thisKey, record) }},
		"a response into room that is there": {0, func() { AppendResponse(room, thisKey, thisToken, response) }},
		"a response into new room":           {1, func() { AppendResponse(nil, thisKey, thisToken, response) }},
		"a record, read":                     {2, func() { must(second(DecodeRecord(thisKey, storedRecord))) }},
		"a response, read":                   {5, func() { must(second(DecodeResponse(thisKey, thisToken, storedResponse))) }},
	} {
		if got := testing.AllocsPerRun(100, c.do); got > c.most {
			t.Errorf("%s: %v allocations, want at most %v", what, got, c.most)
		}
	}
}

// BenchmarkAppendRecord has as many records as it takes for a processor not to learn their
// digits.
func BenchmarkAppendRecord(b *testing.B) {
	var records [1 << 10]*Record
	for i := range records {
		sum := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		records[i] = usualRecord()
		records[i].Fingerprint = "body:" + hex.EncodeToString(sum[:])
		records[i].ExecutionID = string(appendUUID(nil, sum[:uuidSize]))
	}
	room, n := make([]byte, 0, 4<<10), 0
	b.ReportAllocs()
	for b.Loop() {
		AppendRecord(room, thisKey, records[n%len(records)])
		n++
	}
}

func BenchmarkDecodeRecord(b *testing.B) {
	stored := AppendRecord(nil, thisKey, usualRecord())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeRecord(thisKey, stored); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendResponse(b *testing.B) {
	for _, size := range []int{512, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			response, room := usualResponse(), make([]byte, 0, 2<<20)
			response.Body = make([]byte, size)
			b.ReportAllocs()
			for b.Loop() {
				AppendResponse(room, thisKey, thisToken, response)
			}
		})
	}
}

func BenchmarkDecodeResponse(b *testing.B) {
	for _, size := range []int{512, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			response := usualResponse()
			response.Body = make([]byte, size)
			stored := AppendResponse(nil, thisKey, thisToken, response)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := DecodeResponse(thisKey, thisToken, stored); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
