package idempotency

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// secretOf is a configured key that holds only this byte.
func secretOf(b byte) []byte { return bytes.Repeat([]byte{b}, SealingKeySize) }

func sealerOf(t testing.TB, keys ...byte) *Sealer {
	t.Helper()
	var all [][]byte
	for _, b := range keys {
		all = append(all, secretOf(b))
	}
	s, err := NewSealer(all...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSealerRefusesKeys(t *testing.T) {
	for name, c := range map[string]struct {
		keys [][]byte
		want string
	}{
		"short":   {[][]byte{secretOf('a')[:31]}, "key 1 has 31 bytes; a key has 32"},
		"long":    {[][]byte{secretOf('a'), append(secretOf('b'), 'b')}, "key 2 has 33 bytes; a key has 32"},
		"empty":   {[][]byte{{}}, "key 1 has 0 bytes; a key has 32"},
		"doubled": {[][]byte{secretOf('a'), secretOf('b'), secretOf('a')}, "keys 1 and 3 are the same; each key stands once"},
	} {
		s, err := NewSealer(c.keys...)
		if s != nil || err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if s, err := NewSealer(); s != nil || err != nil {
		t.Errorf("no keys made %v, %v; want nothing that seals", s, err)
	}
}

func TestKeyIDsNameTheKeysInOrder(t *testing.T) {
	ids := sealerOf(t, 'a', 'b').KeyIDs()
	if len(ids) != 2 || ids[0] == ids[1] || len(ids[0]) != 2*keyIDSize {
		t.Fatalf("the IDs are %q", ids)
	}
	if other := sealerOf(t, 'b', 'a').KeyIDs(); other[0] != ids[1] || other[1] != ids[0] {
		t.Errorf("in another order the IDs are %q, want those of %q", other, ids)
	}
	var none *Sealer
	if len(none.KeyIDs()) != 0 {
		t.Error("no sealer has keys")
	}
}

// The derivation may only change with its labels: a running installation would
// forget all keys. It is written out here once more.
func TestKeyedNameDerivation(t *testing.T) {
	root, err := hkdf.Extract(sha256.New, secretOf('a'), nil)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := hkdf.Expand(sha256.New, root, "caddy-dedup hash secret v1", 32)
	if err != nil {
		t.Fatal(err)
	}
	keyed := func(text string) string {
		h := hmac.New(sha256.New, secret)
		h.Write([]byte(text))
		return hex.EncodeToString(h.Sum(nil))
	}
	id := Identity{Namespace: "n", Scope: []string{"s"}, Kind: "k", Prefix: "p", ID: "i"}
	const eight = "\x00\x00\x00\x00\x00\x00\x00"
	name, others := sealerOf(t, 'a', 'b').Names(id, "body:00ff")
	if want := keyed(eight + "\x12caddy-dedup key v1" + eight + "\x01n" + eight + "\x01" + eight + "\x01s" + eight + "\x01k" + eight + "\x01p" + eight + "\x01i"); name.Key.String() != want {
		t.Errorf("the key is %s, want %s", name.Key, want)
	}
	if want := "body:" + keyed(eight+"\x1acaddy-dedup fingerprint v1"+eight+"\x09body:00ff"); name.Fingerprint != want {
		t.Errorf("the fingerprint is %s, want %s", name.Fingerprint, want)
	}
	mirrored, back := sealerOf(t, 'b', 'a').Names(id, "body:00ff")
	if len(others) != 1 || len(back) != 1 || mirrored != others[0] || back[0] != name || mirrored == name {
		t.Errorf("one order makes %v and %v, the other %v and %v", name, others, mirrored, back)
	}
}

func TestNamesWithoutKeys(t *testing.T) {
	id := Identity{ID: "i"}
	var none *Sealer
	name, others := none.Names(id, "body:00ff")
	if name != (Name{Key: id.Key(), Fingerprint: "body:00ff"}) || len(others) != 0 {
		t.Errorf("got %v and %v, want the plain hashes", name, others)
	}
	if name, _ := sealerOf(t, 'a').Names(id, ""); name.Fingerprint != "" {
		t.Errorf("no fingerprint became %q", name.Fingerprint)
	}
}

func plainResponse() *Response {
	r := fullResponse()
	r.SealedBy = ""
	return r
}

func TestSealedResponse(t *testing.T) {
	for name, want := range map[string]*Response{
		"whole":   plainResponse(),
		"no body": {Status: 204, Body: []byte{}},
		"failed":  {Status: 502, Failed: true, Body: []byte{}},
		"omitted": {Status: 200, Omitted: true, Header: map[string][]string{"Etag": {`"1"`}}, Body: []byte{}},
		"large":   {Status: 200, Body: bytes.Repeat([]byte("0123456789abcdef"), 1<<12)},
	} {
		t.Run(name, func(t *testing.T) {
			sealed := sealerOf(t, 'a').sealResponse(thisKey, thisToken, want)
			if sealed.Status != want.Status || sealed.SealedBy != sealerOf(t, 'a').KeyIDs()[0] {
				t.Errorf("it is stored as %+v", sealed)
			}
			if sealed.Header != nil || sealed.Failed || sealed.Omitted {
				t.Errorf("its head is readable: %+v", sealed)
			}
			if len(want.Body) > 8 && bytes.Contains(sealed.Body, want.Body[:8]) {
				t.Error("its body is readable")
			}
			// Through the codec, as a store keeps it.
			stored, err := DecodeResponse(thisKey, thisToken, EncodeResponse(thisKey, thisToken, sealed))
			if err != nil {
				t.Fatal(err)
			}
			for _, keys := range []string{"a", "ab", "ba"} {
				got, err := sealerOf(t, []byte(keys)...).openResponse(thisKey, thisToken, stored)
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("got  %+v\nwant %+v", got, want)
				}
			}
			again := sealerOf(t, 'a').sealResponse(thisKey, thisToken, want)
			if bytes.Equal(again.Body, sealed.Body) {
				t.Error("sealed again it is the same: there is no nonce")
			}
		})
	}
}

func TestSealedRecord(t *testing.T) {
	want := fullRecord()
	want.SealedBy = ""
	want.Replaces.DeliveryID = "the one before"
	s := sealerOf(t, 'a')
	sealed := s.sealRecord(thisKey, want)
	for _, r := range []*Record{sealed, sealed.Replaces} {
		if r.SealedBy != s.KeyIDs()[0] || strings.Contains(r.DeliveryID, "72d3162e") || strings.Contains(r.DeliveryID, "before") {
			t.Errorf("the delivery ID is stored as %q, sealed by %q", r.DeliveryID, r.SealedBy)
		}
	}
	if want.SealedBy != "" || want.Replaces.SealedBy != "" {
		t.Fatal("sealing changed the record")
	}
	stored, err := DecodeRecord(thisKey, EncodeRecord(thisKey, sealed))
	if err != nil {
		t.Fatal(err)
	}
	got, err := sealerOf(t, 'b', 'a').openRecord(thisKey, stored)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, got, want)
	}
	if again := s.sealRecord(thisKey, stored); again.DeliveryID != stored.DeliveryID {
		t.Error("what was sealed is sealed again")
	}
	got, err = sealerOf(t, 'b').openRecord(thisKey, stored)
	if err == nil || got.DeliveryID != stored.DeliveryID || got.SealedBy != stored.SealedBy {
		t.Errorf("what does not open came back as %+v, %v", got, err)
	}
}

func TestUnsealedIsReadUnderEncryption(t *testing.T) {
	s := sealerOf(t, 'a')
	r, want := plainResponse(), plainResponse()
	if got, err := s.openResponse(thisKey, thisToken, r); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	record := &Record{State: Held, Token: "t", DeliveryID: "plain"}
	if got, err := s.openRecord(thisKey, record); err != nil || got.DeliveryID != "plain" {
		t.Errorf("got %+v, %v", got, err)
	}
	var none *Sealer
	if none.sealResponse(thisKey, thisToken, r) != r || none.sealRecord(thisKey, record) != record {
		t.Error("without keys something is sealed")
	}
}

// Each row takes what was sealed for one place to another, or reads it with the
// wrong key.
func TestSealedOpensOnlyInItsPlace(t *testing.T) {
	s := sealerOf(t, 'a')
	sealed := s.sealResponse(thisKey, thisToken, plainResponse())
	id, _ := s.sealID(thisKey, "delivery")
	idSealed, err := idEncoding.DecodeString(id)
	if err != nil {
		t.Fatal(err)
	}
	asResponse := func(s *Sealer, key Key, token string, r *Response) error {
		_, err := s.openResponse(key, token, r)
		return err
	}
	asRecord := func(s *Sealer, key Key, id, keyID string) error {
		_, err := s.openRecord(key, &Record{DeliveryID: id, SealedBy: keyID})
		return err
	}
	a, b := s.KeyIDs()[0], sealerOf(t, 'b').KeyIDs()[0]
	var none *Sealer
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"in place":                     {asResponse(s, thisKey, thisToken, sealed), ""},
		"ID in place":                  {asRecord(s, thisKey, id, a), ""},
		"another record":               {asResponse(s, otherKey, thisToken, sealed), "does not open"},
		"another run":                  {asResponse(s, thisKey, otherToken, sealed), "does not open"},
		"another record's ID":          {asRecord(s, otherKey, id, a), "does not open"},
		"another key":                  {asResponse(sealerOf(t, 'b'), thisKey, thisToken, sealed), a + `", which is not configured`},
		"another key's ID":             {asRecord(sealerOf(t, 'b'), thisKey, id, a), a + `", which is not configured`},
		"encryption off":               {asResponse(none, thisKey, thisToken, sealed), "no key is configured"},
		"encryption off, ID":           {asRecord(none, thisKey, id, a), "no key is configured"},
		"named after another":          {asResponse(sealerOf(t, 'a', 'b'), thisKey, thisToken, &Response{SealedBy: b, Body: sealed.Body}), "does not open"},
		"a delivery ID as a response":  {asResponse(s, thisKey, "", &Response{SealedBy: a, Body: idSealed}), "does not open"},
		"an ID that is no base64":      {asRecord(s, thisKey, "%", a), "illegal base64"},
		"nothing":                      {asResponse(s, thisKey, thisToken, &Response{SealedBy: a}), "does not open"},
		"shorter than a nonce and tag": {asResponse(s, thisKey, thisToken, &Response{SealedBy: a, Body: sealed.Body[:27]}), "does not open"},
	} {
		if (c.want == "") != (c.err == nil) || !strings.Contains(fmt.Sprint(c.err), c.want) && c.want != "" {
			t.Errorf("%s: got %v, want %q", name, c.err, c.want)
		}
	}
}

func TestAnyChangedByteIsNoticed(t *testing.T) {
	s := sealerOf(t, 'a')
	for _, id := range []string{"1", "12", "123"} { // each leaves other bits over in the encoding
		stored, keyID := s.sealID(thisKey, id)
		for at := range len(stored) {
			for flip := 1; flip < 256; flip++ {
				changed := []byte(stored)
				changed[at] ^= byte(flip)
				if got, err := s.openRecord(thisKey, &Record{DeliveryID: string(changed), SealedBy: keyID}); err == nil {
					t.Fatalf("with byte %d changed by %#x it opens as %+v", at, flip, got)
				}
			}
		}
	}
}

func FuzzSealedIsNotMalleable(f *testing.F) {
	f.Add([]byte("body"), "delivery", uint16(0), byte(1))
	f.Add([]byte{}, "", uint16(30), byte(0x80))
	f.Add(bytes.Repeat([]byte("x"), 300), "é", uint16(299), byte(0xff))
	s := sealerOf(f, 'a')
	f.Fuzz(func(t *testing.T, body []byte, deliveryID string, at uint16, flip byte) {
		sealed := s.sealResponse(thisKey, thisToken, &Response{Status: 200, Body: body})
		if got, err := s.openResponse(thisKey, thisToken, sealed); err != nil || !bytes.Equal(got.Body, body) {
			t.Fatalf("it opens as %+v, %v", got, err)
		}
		id, keyID := s.sealID(thisKey, deliveryID)
		if got, err := s.openRecord(thisKey, &Record{DeliveryID: id, SealedBy: keyID}); err != nil || got.DeliveryID != deliveryID {
			t.Fatalf("the ID opens as %+v, %v", got, err)
		}
		if flip == 0 {
			return
		}
		damaged := *sealed
		damaged.Body = bytes.Clone(sealed.Body)
		damaged.Body[int(at)%len(damaged.Body)] ^= flip
		if got, err := s.openResponse(thisKey, thisToken, &damaged); err == nil {
			t.Fatalf("a changed byte opens as %+v", got)
		}
		if keyID == "" {
			return
		}
		changed := []byte(id)
		changed[int(at)%len(changed)] ^= flip
		if got, err := s.openRecord(thisKey, &Record{DeliveryID: string(changed), SealedBy: keyID}); err == nil {
			t.Fatalf("a changed ID opens as %+v", got)
		}
	})
}
