package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/bytequeue"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// padded is someCopy with a header field of so many bytes more.
func padded(token string, n int) (*idempotency.Record, *idempotency.Response) {
	record, response := someCopy(token)
	response.Header["X-Padding"] = []string{string(make([]byte, n))}
	return record, response
}

// Whatever is kept, asked for and dropped, packed or not: there are the
// copies that were used last, within the limit, and no other ones. Large ones are too many
// for the others to reach the part of the limit that those are kept within.
func TestCopiesAreThoseUsedLast(t *testing.T) {
	type known struct {
		of    copyOf
		token string
	}
	r := rand.New(rand.NewPCG(7, 11))
	all := NewCopies(1 << 20)
	engines := []*ownCopies{all.own(), all.own()}
	var model []known // the one that was used last comes last
	without := func(of copyOf) {
		model = slices.DeleteFunc(model, func(k known) bool { return k.of == of })
	}
	sizes := []int{10, 300, 2000, 12_000, 20_000}
	largest := int64(2 * sizes[len(sizes)-1])
	for step := range 30_000 {
		o := engines[r.IntN(2)]
		of := copyOf{o, idempotency.Identity{ID: fmt.Sprint(r.IntN(600))}.Key()}
		before, was := all.Bytes(), len(model)
		switch what := r.IntN(1000); {
		case what < 600:
			token := fmt.Sprint("run ", step)
			record, response := padded(token, sizes[r.IntN(len(sizes))])
			form := encode(nil, of.key, record, response)
			n := len(form.parts) + len(response.Body)
			size := int64(sizeOfEncoded + n)
			if roomFor(n) {
				o.keepEncoded(o.begin(of.key), form, response.Body, time.Hour)
			} else {
				large := form.withLarge(response.Body)
				size = sizeOf(large)
				o.keep(o.begin(of.key), large, time.Hour, size)
			}
			if without(of); size <= all.most {
				model = append(model, known{of, token})
			}
		case what < 900:
			at := slices.IndexFunc(model, func(k known) bool { return k.of == of })
			found, _ := o.find(of.key)
			found = o.decoded(found)
			if (found != nil) != (at >= 0) || found != nil && found.record.Token != model[at].token {
				t.Fatalf("step %d: found %+v, want number %d of %d", step, found, at, len(model))
			}
			// What is too large when it is decoded stays where it was.
			if _, still := all.encoded.at(of); at >= 0 && !still {
				used := model[at]
				without(of)
				model = append(model, used)
			}
		case what < 990:
			o.drop(of.key)
			without(of)
		case what < 995:
			o.dropAll()
			model = slices.DeleteFunc(model, func(k known) bool { return k.of.owner == o })
		default:
			all.SetLimit(int64(r.IntN(1 << 20)))
		}
		// What was not used for the longest time has made room.
		evicted := false
		for len(model) > 0 {
			if all.mu.Lock(); all.hasAny(model[0].of) {
				all.mu.Unlock()
				break
			}
			all.mu.Unlock()
			model, evicted = model[1:], true
		}
		held, most := all.Bytes(), all.most
		if held > most || evicted && len(model) > 0 && held < most-largest-bytequeue.BlockSize && before <= most && was > 2 {
			t.Fatalf("step %d: %d bytes are held after %d, the limit is %d; evicted: %v", step, held, before, most, evicted)
		}
		if step%100 == 0 {
			for _, k := range model {
				if all.mu.Lock(); !all.hasAny(k.of) {
					t.Fatalf("step %d: a copy is gone that was used after others that are there", step)
				}
				all.mu.Unlock()
			}
			if n := len(all.entries) + len(all.encoded.index); n != len(model) {
				t.Fatalf("step %d: there are %d copies, want %d", step, n, len(model))
			}
		}
	}
	for what, empty := range map[string]func(){
		"turned off": func() { all.SetLimit(0) },
		"closed": func() {
			engines[0].close()
			engines[1].close()
		},
	} {
		all.SetLimit(1 << 20)
		for n, o := range engines {
			o.closed = false
			o.keepRun(idempotency.Identity{ID: fmt.Sprint(n)}.Key(), "a", false)
			o.keepRun(idempotency.Identity{ID: fmt.Sprint(n)}.Key(), "b", true)
		}
		before := all.encoded.queue.Taken()
		empty()
		if held, left := all.Bytes(), all.encoded.queue.Taken(); held != 0 || left >= before || len(all.entries) != 0 || all.encoded.index != nil {
			t.Errorf("%s: the copies hold %d bytes, and have given nothing back of %d", what, held, before)
		}
	}
}

// hasAny reports whether there is a copy of a key.
func (c *Copies) hasAny(of copyOf) bool {
	_, is := c.encoded.at(of)
	return is || c.entries[of] != nil
}

// Two keys whose hashes are the same, which nobody can make, do not answer for each other.
func TestCopiesOfKeysWithTheSameHash(t *testing.T) {
	o := NewCopies(1 << 20).own()
	one := idempotency.Identity{ID: "one"}.Key()
	two := one
	two[0]++
	o.keepRun(one, "a", false)
	o.keepRun(two, "b", false)
	if found, _ := o.find(one); found != nil {
		t.Error("the later one is found for the earlier one")
	}
	found, _ := o.find(two)
	wantToken(t, "the later one", o.decoded(found), "b")
	if held, want := o.all.Bytes(), sizeOf(o.decoded(found).copyForm); held != want {
		t.Errorf("they take %d bytes, want the %d of the later one", held, want)
	}
	o.drop(one)
	found, _ = o.find(two)
	wantToken(t, "after a drop of the earlier one", o.decoded(found), "b")
}

// Two stores have keys of the same name.
func TestEncodedCopiesOfTwoEngines(t *testing.T) {
	all, key := NewCopies(1<<20), idempotency.Identity{ID: "one"}.Key()
	a, b := all.own(), all.own()
	a.keepRun(key, "a", false)
	b.keepRun(key, "b", false)
	a.dropAll()
	if found, _ := a.find(key); found != nil {
		t.Error("a dropped copy is there")
	}
	found, _ := b.find(key)
	wantToken(t, "the other engine's", b.decoded(found), "b")
}
