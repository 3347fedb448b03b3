package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// The stored form must not change by accident: another version reads it. A change needs a new version
// in the magic.
func TestStoredForm(t *testing.T) {
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"record": {AppendRecord(nil, thisKey, fullRecord()), `
64647208bf18c75e61cdb4e3869069696e5f666c6967687467746f6b656e2d61782430313939623861322d376431632d
373030302d383030302d30303030303030303030303103017845626f64793a3030666630306666303066663030666630
3066663030666630306666303066663030666630306666303066663030666630306666303066663030666630306666f5
88666769746875626d3732643331363265203cc3a93e82667365636f6e646064504f5354706578616d706c652e636f6d
3a383434336a2f686f6f6b732f253246826f2f6e616d6573706163653d73686f70605820010000000000000000000000
000000000000000000000000000000000000000268303066663030666648007365616c6564ff18c91a00011170672f72
756e732f37781e74686520757073747265616d20616e737765726564207769746820353030782430313939623861322d
376431632d373030302d383030302d303030303030303030303030666265666f7265869068636f6d706c657465676561
726c696572782430313939623861322d376431632d373030302d383030302d303030303030303030303030020060f488
6060f6606060f6f660f618c80060606060f60000001b0000019ba0b614701b0000019b7ca98c8e1b0000019b7ca99070
1b0000019b7caa01b81b0000019ba0b61857`},
		"response": {AppendResponse(nil, thisKey, thisToken, fullResponse()), `
6464610435207ac87b1f21fe00000098838518c9a765582d54776f826161616266582d55746638816a7363686cc3bc73
73656c67582d456d707479816068582d4c6174696e318264636166e962ff8068582d4d61726b7570816f3c6120687265
663d223f622663223e69582d52656d6f766564f66c436f6e74656e742d5479706581706170706c69636174696f6e2f6a
736f6ef4f46830306666303066660a1b7488a41e49a4e5587b226964223a317d00ff`},
	} {
		if got := hex.EncodeToString(c.got); got != strings.ReplaceAll(c.want, "\n", "") {
			t.Errorf("%s: got\n%s", name, got)
		}
	}
}

// typicalRecord is the complete record of a webhook with a fingerprint of the body.
func typicalRecord() *Record {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &Record{
		State: Complete, Token: "ABCDEFGHIJKLMNOPQRSTUVWXYZ", ExecutionID: "0199b8a2-7d1c-7000-8000-000000000001", Attempt: 1,
		Fingerprint: "body:" + strings.Repeat("00ff", 16), Status: 201,
		Origin:  Origin{Provider: "github", DeliveryID: "72d3162e-cc78-11e3-81ab-4c9367dc0958"},
		Claimed: now, Ended: now.Add(time.Second), Expires: now.Add(24 * time.Hour),
	}
}

// typicalResponse is a response of 512 bytes.
func typicalResponse() *Response {
	return &Response{
		Status: 201,
		Header: map[string][]string{"Content-Type": {"application/json"}, "Location": {"/orders/17"}, "Etag": {`"17"`}},
		Body:   []byte(strings.Repeat("x", 512)),
	}
}

// BenchmarkAppendRecord has so many records that the branch predictor cannot learn their digits.
func BenchmarkAppendRecord(b *testing.B) {
	var records [1 << 10]*Record
	for i := range records {
		sum := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		records[i] = typicalRecord()
		records[i].Fingerprint = "body:" + hex.EncodeToString(sum[:])
		records[i].ExecutionID = uuid.UUID(sum[:16]).String()
	}
	room, n := make([]byte, 0, 4<<10), 0
	b.ReportAllocs()
	for b.Loop() {
		AppendRecord(room, thisKey, records[n%len(records)])
		n++
	}
}

func BenchmarkDecodeRecord(b *testing.B) {
	stored := AppendRecord(nil, thisKey, typicalRecord())
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
			response, room := typicalResponse(), make([]byte, 0, 2<<20)
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
			response := typicalResponse()
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
