package idempotency

import (
	"reflect"
	"testing"
)

// The fuzzer hardly ever finds bytes with a right checksum. So its bytes are decoded
// twice: as they are, and again with a right checksum put in front of them.

func FuzzDecodeRecord(f *testing.F) {
	whole := EncodeRecord(thisKey, fullRecord())
	f.Add(whole, "")
	f.Add(whole[:len(whole)-1], "")
	f.Add(EncodeResponse(thisKey, thisToken, fullResponse()), "")
	f.Add([]byte(`{"state":"in_flight","token":"a","execution_id":"b","attempt":1,"lease_until":"2026-01-02T03:04:05.678Z"}`), "")
	f.Add([]byte(`{"state":"held","token":"a","attempt":-1,"claimed":"2026-01-02T03:04:05+01:00"}`), "")
	f.Add([]byte(`{"state":"complete","token":"\ud800"}`), "rest")
	f.Add([]byte{}, "")
	f.Fuzz(func(t *testing.T, stored []byte, body string) {
		for _, value := range [][]byte{stored, sealed(recordMagic, thisKey[:], string(stored), body)} {
			r, err := DecodeRecord(thisKey, value)
			if err != nil {
				continue
			}
			if r.Token == "" {
				t.Fatalf("a record without a token: %+v", *r)
			}
			again, err := DecodeRecord(thisKey, EncodeRecord(thisKey, r))
			if err != nil {
				t.Fatalf("%+v was written and cannot be read: %v", *r, err)
			}
			for _, pair := range [][2]any{
				{again.State, r.State}, {again.Token, r.Token}, {again.ExecutionID, r.ExecutionID}, {again.Attempt, r.Attempt},
				{again.Fingerprint, r.Fingerprint}, {again.Hold, r.Hold}, {again.Provider, r.Provider},
				{again.DeliveryID, r.DeliveryID}, {again.Status, r.Status},
				{again.Claimed.Equal(r.Claimed), true}, {again.Ended.Equal(r.Ended), true},
				{again.LeaseUntil.Equal(r.LeaseUntil), true}, {again.Expires.Equal(r.Expires), true},
			} {
				if pair[0] != pair[1] {
					t.Fatalf("%+v was read back as %+v", *r, *again)
				}
			}
		}
	})
}

func FuzzDecodeResponse(f *testing.F) {
	whole := EncodeResponse(thisKey, thisToken, fullResponse())
	f.Add(whole, "")
	f.Add(whole[:len(whole)-1], "")
	f.Add(EncodeRecord(thisKey, fullRecord()), "")
	f.Add([]byte(`{"status":200,"header":{"A":["b","\u00e9"],"C":null,"D":[]}}`), "body")
	f.Add([]byte(`{"status":502,"failed":true}`), "")
	f.Add([]byte(`{"status":200,"omitted":true,"header":{"A":["€"]}}`), "")
	f.Add([]byte{}, "")
	f.Fuzz(func(t *testing.T, stored []byte, body string) {
		owner := responseOwner(thisKey, thisToken)
		for _, value := range [][]byte{stored, sealed(responseMagic, owner, string(stored), body)} {
			r, err := DecodeResponse(thisKey, thisToken, value)
			if err != nil {
				continue
			}
			if r.Status < 100 || r.Status > 999 {
				t.Fatalf("a response of status %d", r.Status)
			}
			again, err := DecodeResponse(thisKey, thisToken, EncodeResponse(thisKey, thisToken, r))
			if err != nil {
				t.Fatalf("%+v was written and cannot be read: %v", *r, err)
			}
			if len(r.Header) == 0 { // an empty map is written as none
				r.Header, again.Header = nil, nil
			}
			if !reflect.DeepEqual(again, r) {
				t.Fatalf("%+v was read back as %+v", *r, *again)
			}
		}
	})
}
