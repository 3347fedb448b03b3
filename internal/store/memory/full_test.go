package memory_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
)

// filled is a store that has no room for the responses of some runs.
type filled struct {
	*memory.Store
	t *testing.T
	// kept are keys with a response, unstored are runs whose responses found no room.
	kept     []idempotency.Key
	unstored []*idempotency.Record
	keys     []idempotency.Key // of unstored
	next     int
}

// newFilled begins so many runs more than there is room for responses.
func newFilled(t *testing.T, unstored int) *filled {
	f := &filled{Store: memory.New(1 << 20), t: t, next: 1000}
	t.Cleanup(func() { _ = f.Close() })
	type run struct {
		key    idempotency.Key
		record *idempotency.Record
	}
	var runs []run
	for n := range 55 + unstored {
		claimed, err := f.Claim(t.Context(), claim(n))
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run{claim(n).Key, claimed.Record})
	}
	for _, r := range runs {
		switch err := f.Settle(t.Context(), r.key, r.record, kept(20_000)); {
		case err == nil:
			f.kept = append(f.kept, r.key)
		case errors.Is(err, idempotency.ErrFull):
			f.keys, f.unstored = append(f.keys, r.key), append(f.unstored, r.record)
		default:
			t.Fatal(err)
		}
	}
	for len(f.unstored) > unstored {
		f.free()
		f.try(0, nil)
	}
	if len(f.unstored) != unstored {
		t.Fatalf("%d responses found no room, want %d", len(f.unstored), unstored)
	}
	return f
}

// free makes room for one response.
func (f *filled) free() {
	f.t.Helper()
	if err := f.Forget(f.t.Context(), f.kept[0], idempotency.Seen{}); err != nil {
		f.t.Fatal(err)
	}
	f.kept = f.kept[1:]
}

// try tries again to store an end.
func (f *filled) try(n int, want error) {
	f.t.Helper()
	if err := f.Settle(f.t.Context(), f.keys[n], f.unstored[n], kept(20_000)); !errors.Is(err, want) {
		f.t.Fatalf("the end: %v, want %v", err, want)
	}
	if want == nil {
		f.keys, f.unstored = append(f.keys[:n:n], f.keys[n+1:]...), append(f.unstored[:n:n], f.unstored[n+1:]...)
	}
}

// wantNew claims a new key, for which there is room.
func (f *filled) wantNew(want error) {
	f.t.Helper()
	f.next++
	c := claim(f.next)
	got, err := f.Claim(f.t.Context(), c)
	if !errors.Is(err, want) || want != nil && got.Record != nil {
		f.t.Fatalf("a new key: %+v, %v, want %v", got.Record, err, want)
	}
	record, _, err := f.Lookup(f.t.Context(), c.Key)
	if err != nil || (record == nil) != (want != nil) {
		f.t.Fatalf("the new key's record is %+v, %v", record, err)
	}
	if want == nil {
		release := idempotency.Settlement{State: idempotency.Released, Retention: time.Hour}
		if err := f.Settle(f.t.Context(), c.Key, record, release); err != nil {
			f.t.Fatal(err)
		}
	}
}

// A claim fits where the response of its run does not. So no run begins under a new key
// while responses wait for room: they would only be more.
func TestNoNewKeyWhileAnEndWaitsForRoom(t *testing.T) {
	for name, test := range map[string]func(f *filled){
		"until it is stored": func(f *filled) {
			f.wantNew(idempotency.ErrFull)
			f.free()
			f.wantNew(idempotency.ErrFull) // the room is for the end that waits
			f.try(0, nil)
			f.wantNew(nil)
		},
		"while it is tried": func(f *filled) {
			for range 1000 {
				time.Sleep(3 * time.Second)
				f.wantNew(idempotency.ErrFull)
				f.try(0, idempotency.ErrFull)
			}
		},
		"until nobody tries any more": func(f *filled) {
			time.Sleep(4 * time.Second)
			f.wantNew(idempotency.ErrFull)
			time.Sleep(6 * time.Second)
			f.wantNew(nil)
		},
		"until the key is another's": func(f *filled) {
			time.Sleep(time.Minute - time.Second)
			f.try(0, idempotency.ErrFull)
			time.Sleep(time.Second) // its lease
			c := claim(-1)
			c.Key = f.keys[0]
			if got, err := f.Claim(f.t.Context(), c); err != nil || got.Verdict != idempotency.Proceed {
				f.t.Fatalf("a takeover: %v, %v", got.Verdict, err)
			}
			f.wantNew(idempotency.ErrFull)
			f.try(0, idempotency.ErrFenced)
			f.wantNew(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(newFilled(t, 1)) })
		})
	}
	t.Run("until all are stored", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFilled(t, 3)
			for range 3 {
				f.wantNew(idempotency.ErrFull)
				f.free()
				f.try(0, nil)
			}
			f.wantNew(nil)
		})
	})
	t.Run("until some are stored and the others given up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFilled(t, 3)
			f.free()
			f.try(1, nil)
			time.Sleep(4 * time.Second)
			f.try(1, idempotency.ErrFull)
			time.Sleep(7 * time.Second)
			f.wantNew(idempotency.ErrFull)
			f.free()
			f.try(1, nil)
			f.wantNew(nil)
		})
	})
}

// What is not a new key goes on while an end waits for room.
func TestWhatGoesOnWhileAnEndWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFilled(t, 3)
		of := func(key idempotency.Key) idempotency.Claim {
			f.next++
			c := claim(f.next)
			c.Key = key
			return c
		}
		want := func(what string, c idempotency.Claim, want idempotency.Verdict) *idempotency.Record {
			t.Helper()
			got, err := f.Claim(t.Context(), c)
			if err != nil || got.Verdict != want {
				t.Fatalf("%s: %v, %v, want %v", what, got.Verdict, err, want)
			}
			return got.Record
		}
		want("a duplicate", of(f.kept[0]), idempotency.ReplayKept)
		want("a duplicate of a run", of(f.keys[0]), idempotency.WaitForRun)
		same := of(f.keys[0])
		same.Token = f.unstored[0].Token
		want("the same claim again", same, idempotency.Proceed)
		if err := f.Renew(t.Context(), same); err != nil {
			t.Errorf("a renewal: %v", err)
		}
		release := idempotency.Settlement{State: idempotency.Released, Counted: true, Retention: time.Hour}
		if err := f.Settle(t.Context(), f.keys[0], f.unstored[0], release); err != nil {
			t.Errorf("an end that needs no room: %v", err)
		}
		record := want("a retry after a release", of(f.keys[0]), idempotency.Proceed)
		held := idempotency.Settlement{State: idempotency.Held, Counted: true, Retention: time.Hour}
		if err := f.Settle(t.Context(), f.keys[0], record, held); err != nil {
			t.Errorf("the end of a retry: %v", err)
		}
		if _, err := f.Free(t.Context(), f.keys[0], "another", idempotency.Seen{}); err != nil {
			t.Errorf("free: %v", err)
		}
		if err := f.Forget(t.Context(), f.keys[0], idempotency.Seen{}); err != nil {
			t.Errorf("forget: %v", err)
		}
		f.wantNew(idempotency.ErrFull) // the others still wait
	})
}

// A response that would not fit if nothing else was kept does not wait for room. All others
// find some when what is kept has expired, however the store was filled before.
func TestEndsWaitOnlyForRoomThatMayCome(t *testing.T) {
	for _, limit := range []int64{64 << 10, 100 << 10, 300 << 10, 1 << 20} {
		for _, others := range []int{300, 9_000, 30_000, 50_000} {
			t.Run(fmt.Sprint(limit, " of ", others), func(t *testing.T) {
				tooLarge, stored := 0, 0
				for size := int64(100); size < limit*3/2; size = size*4/3 + 1 {
					synctest.Test(t, func(t *testing.T) {
						if fitsInTheEnd(t, limit, others, int(size)) {
							stored++
						} else if tooLarge++; size < limit/20 || size < limit-300_000 {
							t.Errorf("%d bytes are too large", size)
						}
					})
				}
				if tooLarge == 0 || stored == 0 {
					t.Errorf("%d sizes are too large, and %d are not", tooLarge, stored)
				}
			})
		}
	}
}

// fitsInTheEnd fills a store with other responses, and then stores one of so many bytes when
// all else has expired. It reports false if that is too large.
func fitsInTheEnd(t *testing.T, limit int64, others, size int) bool {
	s := memory.New(limit)
	defer s.Close()
	long := claim(0)
	long.Retention = 24 * time.Hour
	var claimed idempotency.Claimed
	for n := 1; ; n++ {
		if n == 5 {
			var err error
			if claimed, err = s.Claim(t.Context(), long); err != nil {
				t.Fatal(err)
			}
		}
		other, err := s.Claim(t.Context(), claim(n))
		if err == nil {
			settlement := kept(others)
			settlement.Retention = time.Hour
			err = s.Settle(t.Context(), claim(n).Key, other.Record, settlement)
		}
		if err != nil && n > 5 {
			break
		}
	}
	for {
		switch err := s.Settle(t.Context(), long.Key, claimed.Record, kept(size)); {
		case err == nil:
			return true
		case errors.Is(err, idempotency.ErrTooLarge):
			if record, _, err := s.Lookup(t.Context(), long.Key); err != nil || record.State != idempotency.InFlight {
				t.Fatalf("after it: %+v, %v; want the run still in flight", record, err)
			}
			return false
		case time.Since(claimed.Now) > 3*time.Hour:
			t.Fatalf("%d bytes: %v, though nothing else is kept any more", size, err)
		}
		time.Sleep(20 * time.Minute)
	}
}
