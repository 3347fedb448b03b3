package idempotency

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"testing"
)

// The fuzzer hardly ever finds bytes with a right checksum. So the targets decode its bytes twice: as
// they are, and as fields after a right checksum.

func FuzzDecodeRecord(f *testing.F) {
	whole := AppendRecord(nil, thisKey, fullRecord())
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(AppendResponse(nil, thisKey, thisToken, fullResponse()))
	f.Add(whole[frameSize:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, stored []byte) {
		for _, value := range [][]byte{stored, sealed(recordMagic, thisKey, "", stored)} {
			r, err := DecodeRecord(thisKey, value)
			if err != nil {
				continue
			}
			if r.Token == "" || r.State == "" || r.Previous != nil && r.Previous.Previous != nil {
				t.Fatalf("it was read as %+v", *r)
			}
			written := AppendRecord(nil, thisKey, r)
			again, err := DecodeRecord(thisKey, written)
			if err != nil {
				t.Fatalf("%+v was written and cannot be read: %v", *r, err)
			}
			if !reflect.DeepEqual(again, r) {
				t.Fatalf("%+v was read back as %+v", *r, *again)
			}
			if !bytes.Equal(AppendRecord(nil, thisKey, again), written) {
				t.Fatalf("%+v was written in two ways", *r)
			}
		}
	})
}

func FuzzDecodeResponse(f *testing.F) {
	whole := AppendResponse(nil, thisKey, thisToken, fullResponse())
	head := AppendResponseHead(nil, thisKey, thisToken, fullResponse())
	f.Add(whole, []byte{})
	f.Add(whole[:len(whole)-1], []byte{})
	f.Add(head, fullResponse().Body)
	f.Add(AppendRecord(nil, thisKey, fullRecord()), []byte{})
	f.Add(head[frameSize+lengthSize:], fullResponse().Body)
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, stored, body []byte) {
		head := binary.BigEndian.AppendUint32(nil, uint32(len(stored)))
		head = sealed(responseMagic, thisKey, thisToken, append(head, stored...))
		for _, read := range []func() (*Response, error){
			func() (*Response, error) { return DecodeResponse(thisKey, thisToken, stored) },
			func() (*Response, error) { return DecodeResponseParts(thisKey, thisToken, stored, body) },
			func() (*Response, error) { return DecodeResponseParts(thisKey, thisToken, head, body) },
			func() (*Response, error) { return DecodeResponse(thisKey, thisToken, append(head, body...)) },
		} {
			r, err := read()
			if err != nil {
				continue
			}
			if r.Status < 100 || r.Status > 999 {
				t.Fatalf("a response of status %d", r.Status)
			}
			again, err := DecodeResponse(thisKey, thisToken, AppendResponse(nil, thisKey, thisToken, r))
			if err != nil {
				t.Fatalf("%+v was written and cannot be read: %v", *r, err)
			}
			if !reflect.DeepEqual(again, r) {
				t.Fatalf("%+v was read back as %+v", *r, *again)
			}
		}
	})
}
