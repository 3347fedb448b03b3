package seal

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// secretOf returns a key of which every byte is this one.
func secretOf(b byte) []byte { return bytes.Repeat([]byte{b}, KeySize) }

func sealerOf(t testing.TB, keys ...byte) *Sealer {
	t.Helper()
	var all [][]byte
	for _, b := range keys {
		all = append(all, secretOf(b))
	}
	s, err := New(all...)
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
		"doubled": {[][]byte{secretOf('a'), secretOf('b'), secretOf('a')}, "keys 1 and 3 are the same; name each key once"},
	} {
		s, err := New(c.keys...)
		if s != nil || err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if s, err := New(); s != nil || err != nil {
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

// If a new version derived fingerprints in another way under the same label, a
// running installation would refuse every duplicate as another request. So this test
// spells out the derivation.
func TestFingerprintForms(t *testing.T) {
	keyed := func(b byte, text string) string {
		root, err := hkdf.Extract(sha256.New, secretOf(b), nil)
		if err != nil {
			t.Fatal(err)
		}
		secret, err := hkdf.Expand(sha256.New, root, "caddy-dedup fingerprint secret v1", 32)
		if err != nil {
			t.Fatal(err)
		}
		h := hmac.New(sha256.New, secret)
		h.Write([]byte(text))
		return hex.EncodeToString(h.Sum(nil))
	}
	s := sealerOf(t, 'a', 'b')
	ids := s.KeyIDs()
	want := []string{
		"body/" + ids[0] + ":" + keyed('a', string(thisKey[:])+"body:00ff"),
		"body/" + ids[1] + ":" + keyed('b', string(thisKey[:])+"body:00ff"),
		"body:00ff",
	}
	if got := s.Fingerprints(thisKey, "body:00ff"); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := s.Fingerprints(otherKey, "body:00ff"); got[0] == want[0] || got[2] != want[2] {
		t.Errorf("for another record the forms are %q", got)
	}
	var none *Sealer
	if got := none.Fingerprints(thisKey, "body:00ff"); !slices.Equal(got, want[2:]) {
		t.Errorf("without keys the forms are %q", got)
	}
	if got := s.Fingerprints(thisKey, ""); got != nil {
		t.Errorf("no fingerprint became %q", got)
	}
}

// The fingerprint of a record is compared under the key with which it was claimed,
// even if that key is not the first one any more. If the key is not configured any
// more, the record is unreadable.
func TestFingerprintsAcrossKeyRotation(t *testing.T) {
	now := time.Unix(1000, 0)
	claimOf := func(keys, content string) (*Sealer, idempotency.Claim) {
		s := sealerOf(t, []byte(keys)...)
		return s, idempotency.Claim{Key: thisKey, Token: keys, Fingerprints: s.Fingerprints(thisKey, "body:"+content)}
	}
	for _, c := range []struct {
		wrote, asks string
		readable    bool
	}{
		{"", "", true}, {"a", "a", true}, {"ab", "a", true}, {"b", "ab", true}, {"a", "ba", true},
		{"", "a", true}, {"a", "", false}, {"a", "b", false}, {"ab", "b", false},
	} {
		_, first := claimOf(c.wrote, "one")
		record := first.Record(nil, now).Settled(idempotency.Settlement{State: idempotency.Complete, Counted: true, Retention: time.Hour}, now)
		asking, same := claimOf(c.asks, "one")
		_, another := claimOf(c.asks, "two")
		if err := asking.check(record); (err == nil) != c.readable {
			t.Errorf("written with %q, read with %q: %v", c.wrote, c.asks, err)
		}
		if !c.readable {
			continue
		}
		if got := idempotency.Decide(record, same, now); got != idempotency.ReplayKept {
			t.Errorf("written with %q, the same with %q: %v", c.wrote, c.asks, got)
		}
		if got := idempotency.Decide(record, another, now); got != idempotency.RefuseReused {
			t.Errorf("written with %q, another with %q: %v", c.wrote, c.asks, got)
		}
	}
}

var (
	thisKey  = idempotency.Identity{ID: "this"}.Key()
	otherKey = idempotency.Identity{ID: "other"}.Key()
)

const (
	thisToken  = "this run's"
	otherToken = "another run's"
)

func plainResponse() *idempotency.Response {
	return &idempotency.Response{
		Status: 201,
		Header: map[string][]string{"Content-Type": {"text/plain"}, "X-Bytes": {"\xff\x00", ""}, "Removed": nil},
		Body:   []byte("hello, \x00\xff world"),
	}
}

func TestSealedResponse(t *testing.T) {
	for name, want := range map[string]*idempotency.Response{
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
			// Encoded and decoded, as a store keeps it.
			stored, err := idempotency.DecodeResponse(thisKey, thisToken, idempotency.AppendResponse(nil, thisKey, thisToken, sealed))
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

// sealedRecord returns a record as a claim with this sealer writes it.
func sealedRecord(s *Sealer, deliveryID string) *idempotency.Record {
	r := &idempotency.Record{State: idempotency.InFlight, Token: thisToken, Attempt: 1}
	c := s.sealOrigin(idempotency.Claim{Key: thisKey, Origin: someOrigin(deliveryID)})
	r.Origin, r.Sealed, r.SealedBy, r.Reason = c.Origin, c.Sealed, c.SealedBy, s.sealText(sealedReasonLabel, thisKey, "cut off at 72d3162e")
	return r
}

func someOrigin(deliveryID string) idempotency.Origin {
	return idempotency.Origin{Provider: "github", DeliveryID: deliveryID, Parts: []string{"channel"}, Method: "POST", Host: "example.com", Path: "/hooks", Scope: []string{"/namespace=shop"}}
}

// sealedOrigin returns what is stored of an origin, and the ID of the key.
func (s *Sealer) sealedOrigin(deliveryID string) (sealed []byte, keyID string) {
	c := s.sealOrigin(idempotency.Claim{Key: thisKey, Origin: someOrigin(deliveryID)})
	return c.Sealed, c.SealedBy
}

func TestSealedRecord(t *testing.T) {
	a, b := sealerOf(t, 'a'), sealerOf(t, 'b')
	// A forced run that was claimed after the first key had changed.
	sealed := sealedRecord(a, "72d3162e")
	sealed.Previous = sealedRecord(b, "the one before")
	for _, r := range []*idempotency.Record{sealed, sealed.Previous} {
		stored := string(idempotency.AppendRecord(nil, thisKey, &idempotency.Record{State: r.State, Token: "t", Origin: r.Origin, Sealed: r.Sealed, Reason: r.Reason}))
		for _, readable := range []string{"72d3162e", "before", "github", "channel", "POST", "example.com", "/hooks", "cut off"} {
			if strings.Contains(stored, readable) {
				t.Errorf("%s is readable in %q", readable, stored)
			}
		}
	}
	stored, err := idempotency.DecodeRecord(thisKey, idempotency.AppendRecord(nil, thisKey, sealed))
	if err != nil {
		t.Fatal(err)
	}
	// The key of the record that is to be replaced is not needed.
	for _, s := range []*Sealer{a, sealerOf(t, 'b', 'a')} {
		got, err := s.openRecord(thisKey, stored)
		if err != nil || !reflect.DeepEqual(got.Origin, someOrigin("72d3162e")) || got.SealedBy != "" || got.Reason != "cut off at 72d3162e" || got.Previous != stored.Previous {
			t.Errorf("it opens as %+v, %v", got, err)
		}
	}
	if stored.SealedBy != a.KeyIDs()[0] || stored.Previous.SealedBy != b.KeyIDs()[0] {
		t.Error("opening changed the stored record")
	}
	for name, s := range map[string]*Sealer{"neither key": sealerOf(t, 'c'), "the other": b, "no keys": nil} {
		if got, err := s.openRecord(thisKey, stored); err == nil {
			t.Errorf("with %s it opens as %+v", name, got)
		}
	}
}

func withID(sealed []byte, keyID string) *idempotency.Record {
	return &idempotency.Record{Sealed: sealed, SealedBy: keyID}
}

func TestUnsealedValuesStayReadable(t *testing.T) {
	s := sealerOf(t, 'a')
	r, want := plainResponse(), plainResponse()
	if got, err := s.openResponse(thisKey, thisToken, r); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	record := &idempotency.Record{State: idempotency.Held, Token: "t", Origin: idempotency.Origin{DeliveryID: "plain"}}
	if got, err := s.openRecord(thisKey, record); err != nil || got.DeliveryID != "plain" {
		t.Errorf("got %+v, %v", got, err)
	}
	var none *Sealer
	if sealed, by := none.sealedOrigin("plain"); none.sealResponse(thisKey, thisToken, r) != r || sealed != nil || by != "" || none.sealText(sealedReasonLabel, thisKey, "r") != "r" {
		t.Error("without keys something is sealed")
	}
}

// In each row, a text that was sealed for one place is opened in another place, or
// with the wrong key.
func TestSealedValueIsBoundToKeyAndRun(t *testing.T) {
	s := sealerOf(t, 'a')
	sealed := s.sealResponse(thisKey, thisToken, plainResponse())
	id, _ := s.sealedOrigin("delivery")
	asResponse := func(s *Sealer, key idempotency.Key, token string, r *idempotency.Response) error {
		_, err := s.openResponse(key, token, r)
		return err
	}
	asRecord := func(s *Sealer, key idempotency.Key, id []byte, keyID string) error {
		_, err := s.openRecord(key, withID(id, keyID))
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
		"named after another":          {asResponse(sealerOf(t, 'a', 'b'), thisKey, thisToken, &idempotency.Response{SealedBy: b, Body: sealed.Body}), "does not open"},
		"a delivery ID as a response":  {asResponse(s, thisKey, "", &idempotency.Response{SealedBy: a, Body: id}), "does not open"},
		"an ID of one byte":            {asRecord(s, thisKey, []byte("%"), a), "does not open"},
		"nothing":                      {asResponse(s, thisKey, thisToken, &idempotency.Response{SealedBy: a}), "does not open"},
		"shorter than a nonce and tag": {asResponse(s, thisKey, thisToken, &idempotency.Response{SealedBy: a, Body: sealed.Body[:27]}), "does not open"},
	} {
		if (c.want == "") != (c.err == nil) || !strings.Contains(fmt.Sprint(c.err), c.want) && c.want != "" {
			t.Errorf("%s: got %v, want %q", name, c.err, c.want)
		}
	}
}

func FuzzSealedIsNotMalleable(f *testing.F) {
	f.Add([]byte("body"), "delivery", uint16(0), byte(1))
	f.Add([]byte{}, "", uint16(30), byte(0x80))
	f.Add(bytes.Repeat([]byte("x"), 300), "é", uint16(299), byte(0xff))
	s := sealerOf(f, 'a')
	f.Fuzz(func(t *testing.T, body []byte, deliveryID string, at uint16, flip byte) {
		sealed := s.sealResponse(thisKey, thisToken, &idempotency.Response{Status: 200, Body: body})
		if got, err := s.openResponse(thisKey, thisToken, sealed); err != nil || !bytes.Equal(got.Body, body) {
			t.Fatalf("it opens as %+v, %v", got, err)
		}
		deliveryID = strings.ToValidUTF8(deliveryID, "?") // as every ID is
		id, keyID := s.sealedOrigin(deliveryID)
		if got, err := s.openRecord(thisKey, withID(id, keyID)); err != nil || got.DeliveryID != deliveryID {
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
		changed := bytes.Clone(id)
		changed[int(at)%len(changed)] ^= flip
		if got, err := s.openRecord(thisKey, withID(changed, keyID)); err == nil {
			t.Fatalf("a changed ID opens as %+v", got)
		}
	})
}
