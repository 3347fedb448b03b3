package engine

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The tests in this file stand between the two steps of a first duplicate: its copy is
// found, and then decoded. What happens meanwhile a test from outside meets only by chance.

// someCopy returns a complete record and its response, of a run with this token.
func someCopy(token string) (*idempotency.Record, *idempotency.Response) {
	at := time.UnixMilli(1_800_000_000_000).UTC()
	record := &idempotency.Record{
		State: idempotency.Complete, Token: token, ExecutionID: "run of " + token, Attempt: 1, Status: 201,
		Claimed: at, Ended: at.Add(time.Second), Expires: at.Add(time.Hour),
	}
	return record, &idempotency.Response{Status: 201, Header: map[string][]string{"Etag": {token}}, Body: []byte("by " + token)}
}

// keepRun keeps an encoded copy of a run with this token, which is packed, or
// has a large body.
func (o *ownCopies) keepRun(key idempotency.Key, token string, large bool) {
	record, response := someCopy(token)
	if form := encode(nil, key, record, response); large {
		whole := form.withLarge(response.Body)
		o.keep(o.begin(key), whole, time.Hour, sizeOf(whole))
	} else {
		o.keepEncoded(o.begin(key), form, response.Body, time.Hour)
	}
}

// wantToken checks what a copy is of; "" for no copy.
func wantToken(t *testing.T, what string, found *copied, token string) {
	t.Helper()
	switch {
	case found == nil:
		if token != "" {
			t.Errorf("%s: there is no copy, want that of %q", what, token)
		}
	case found.record == nil:
		t.Errorf("%s: the copy is encoded", what)
	default:
		record, response := someCopy(token)
		if !reflect.DeepEqual(found.record, record) || !reflect.DeepEqual(found.response, response) {
			t.Errorf("%s: %+v, %+v, want those of %q", what, found.record, found.response, token)
		}
	}
}

// What was found answers its request, whatever becomes of it. It must not come back.
func TestCopyThatIsGoneWhenItIsDecoded(t *testing.T) {
	key := idempotency.Identity{ID: "one"}.Key()
	for name, c := range map[string]struct {
		happens func(o *ownCopies)
		want    string // what is there after that
	}{
		"nothing":                 {func(*ownCopies) {}, "a"},
		"dropped":                 {func(o *ownCopies) { o.drop(key) }, ""},
		"all":                     {func(o *ownCopies) { o.dropAll() }, ""},
		"closed":                  {func(o *ownCopies) { o.close() }, ""},
		"off":                     {func(o *ownCopies) { o.all.SetLimit(0) }, ""},
		"replaced":                {func(o *ownCopies) { o.keepRun(key, "b", false) }, "b"},
		"replaced by a large one": {func(o *ownCopies) { o.keepRun(key, "b", true) }, "b"},
		"dropped and kept again": {func(o *ownCopies) {
			o.drop(key)
			o.keepRun(key, "b", false)
		}, "b"},
		"decoded for another": {func(o *ownCopies) {
			found, _ := o.find(key)
			o.decoded(found)
		}, "a"},
	} {
		for _, large := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, large: %v", name, large), func(t *testing.T) {
				o := NewCopies(1 << 20).own()
				o.keepRun(key, "a", large)
				found, _ := o.find(key)
				c.happens(o)
				wantToken(t, "what was found", o.decoded(found), "a")
				found, _ = o.find(key)
				wantToken(t, "afterwards", o.decoded(found), c.want)
				var want int64
				if found, _ = o.find(key); found != nil {
					want = sizeOf(found.copyForm)
				}
				if held := o.all.Bytes(); held != want {
					t.Errorf("the copies take %d bytes by their own account, want %d", held, want)
				}
			})
		}
	}
}

// Only a mistake of ours can make an encoded copy one that cannot be decoded. Then there is
// none any more.
func TestCopyThatCannotBeDecoded(t *testing.T) {
	key := idempotency.Identity{ID: "one"}.Key()
	for part, damage := range map[string]func(form *copyForm) *byte{
		"record":   func(form *copyForm) *byte { return &form.encoded[form.recordEnd-1] },
		"response": func(form *copyForm) *byte { return &form.encoded[form.headEnd-1] },
	} {
		t.Run(part, func(t *testing.T) {
			o := NewCopies(1 << 20).own()
			o.keepRun(key, "a", false)
			found, _ := o.find(key)
			*damage(&found.copyForm) ^= 1
			if got := o.decoded(found); got != nil {
				t.Errorf("it was decoded as %+v, %+v", got.record, got.response)
			}
			if found, _ := o.find(key); found != nil || o.all.Bytes() != 0 {
				t.Errorf("it is still there, and takes %d bytes", o.all.Bytes())
			}
		})
	}
}
