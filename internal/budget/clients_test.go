package budget

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fakeClient reads what an allowance holds. When it is disconnected, it gives its room back.
type fakeClient struct {
	holds *Allowance
	since time.Time // zero while nothing is written to it
	run   string
	gone  atomic.Int64 // how often it was disconnected
}

const idleFor = 10 * time.Second

func (c *fakeClient) Sample(now time.Time, waits bool) {
	if waits {
		c.since = now
	}
}
func (c *fakeClient) Waiting() string { return c.run }
func (c *fakeClient) Disconnect(time.Time) {
	c.gone.Add(1)
}

func (c *fakeClient) Idle(now time.Time) (time.Time, bool) {
	return c.since, !c.since.IsZero() && now.Sub(c.since) >= idleFor
}

// Clients that have taken nothing for long are disconnected when their room is needed, the longest idle
// first, until there is enough.
func TestIdleClientsMakeRoom(t *testing.T) {
	type client struct {
		holds   int           // units
		idle    time.Duration // 0: it takes what it gets
		run     string
		reading string // the name of what it reads, "" for something of its own
	}
	for name, c := range map[string]struct {
		clients []client
		need    func(b *Budget, a *Allowance) // what makes the need
		want    []int                         // which are disconnected
	}{
		"without need": {[]client{{holds: 10, idle: time.Hour}}, func(*Budget, *Allowance) {}, nil},
		"a new request": {[]client{{holds: 5, idle: time.Minute}, {holds: 5, idle: time.Hour}},
			func(_ *Budget, a *Allowance) { _ = a.Admit(2 * unit) }, []int{1}},
		"a new run":               {[]client{{holds: 10, idle: time.Minute}}, func(b *Budget, _ *Allowance) { _ = b.Busy() }, []int{0}},
		"a run":                   {[]client{{holds: 10, idle: time.Minute}}, func(_ *Budget, a *Allowance) { go a.Take(unit) }, []int{0}},
		"a replay":                {[]client{{holds: 10, idle: time.Minute}}, func(b *Budget, a *Allowance) { go func() { _ = a.TakeReplay(context.Background(), unit) }() }, []int{0}},
		"as many as needed":       {[]client{{holds: 3, idle: time.Minute}, {holds: 3, idle: time.Hour}, {holds: 4, idle: 2 * time.Hour}}, func(_ *Budget, a *Allowance) { go a.Take(5 * unit) }, []int{1, 2}},
		"no more than is missing": {[]client{{holds: 3, idle: time.Hour}, {holds: 3, idle: 2 * time.Hour}}, func(_ *Budget, a *Allowance) { go a.Take(5 * unit) }, []int{1}},
		"no less than is missing": { // new requests get 9
			[]client{{holds: 8}, {holds: 1, idle: time.Hour}, {holds: 1, idle: 2 * time.Hour}}, func(_ *Budget, a *Allowance) { _ = a.Admit(unit) }, []int{1, 2}},
		"room that is there":   {[]client{{holds: 1, idle: time.Hour}}, func(_ *Budget, a *Allowance) { _ = a.TakeReplay(context.Background(), unit) }, nil},
		"not for so long":      {[]client{{holds: 10, idle: idleFor - time.Second}}, func(_ *Budget, a *Allowance) { _ = a.Admit(unit) }, nil},
		"one that takes":       {[]client{{holds: 10}}, func(_ *Budget, a *Allowance) { _ = a.Admit(unit) }, nil},
		"one that frees none":  {[]client{{holds: 0, idle: time.Hour}, {holds: 10, idle: time.Minute}}, func(_ *Budget, a *Allowance) { _ = a.Admit(unit) }, []int{1}},
		"all that read it":     {[]client{{holds: 10, idle: time.Hour, reading: "x"}, {idle: time.Minute, reading: "x"}}, func(_ *Budget, a *Allowance) { _ = a.Admit(unit) }, []int{0, 1}},
		"not one of those":     {[]client{{holds: 10, idle: time.Hour, reading: "x"}, {reading: "x"}}, func(_ *Budget, a *Allowance) { _ = a.Admit(unit) }, nil},
		"a run that waits":     {[]client{{holds: 10, idle: time.Hour, run: "outer"}}, func(_ *Budget, a *Allowance) { a.SetRun("outer"); go a.Take(unit) }, nil},
		"a run that waits not": {[]client{{holds: 10, idle: time.Hour, run: "outer"}}, func(_ *Budget, a *Allowance) { go a.Take(unit) }, []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, next := budgetOf(limit)
				var clients []*fakeClient
				named := make(map[string]*Allowance)
				for _, one := range c.clients {
					f := &fakeClient{holds: next(), run: one.run}
					if one.reading != "" {
						if named[one.reading] == nil {
							named[one.reading] = f.holds
						}
						f.holds = named[one.reading]
					}
					if one.idle > 0 {
						f.since = time.Now().Add(-one.idle)
					}
					f.holds.Count(one.holds * unit)
					clients = append(clients, f)
					b.AddClient(f, f.holds)
				}
				c.need(b, next())
				synctest.Wait()
				var gone []int
				for i, f := range clients {
					if f.gone.Load() > 0 {
						gone = append(gone, i)
					}
				}
				if !slices.Equal(gone, c.want) {
					t.Errorf("%v are disconnected, want %v", gone, c.want)
				}
				for _, f := range clients {
					b.RemoveClient(f, f.holds)
					f.holds.ReleaseAll()
				}
				b.SetLimit(1 << 40)
				synctest.Wait()
			})
		})
	}
}

// A client that becomes idle while something waits is found, and it is disconnected again and again until it
// is removed, and not after that.
func TestIdleClientsAreSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(limit)
		f := &fakeClient{holds: next(), since: time.Now()}
		f.holds.Count(limit)
		b.AddClient(f, f.holds)
		go next().TakeReplay(t.Context(), unit) //nolint:errcheck // it waits until the room is free
		time.Sleep(idleFor - sampleInterval)
		if f.gone.Load() > 0 {
			t.Error("it is disconnected too early")
		}
		time.Sleep(4 * sampleInterval)
		if f.gone.Load() < 3 {
			t.Errorf("it is disconnected %d times", f.gone.Load())
		}
		b.RemoveClient(f, f.holds)
		before := f.gone.Load()
		f.holds.ReleaseAll()
		time.Sleep(time.Minute)
		if f.gone.Load() != before {
			t.Error("it is disconnected after it was removed")
		}
		other := &fakeClient{holds: next(), since: time.Now()}
		other.holds.Count(unit)
		b.AddClient(other, other.holds)
		time.Sleep(time.Hour)
		if other.gone.Load() > 0 {
			t.Error("an idle client is disconnected while nothing needs its room")
		}
		b.RemoveClient(other, other.holds)
		other.holds.ReleaseAll()
	})
}

// The room of a body that several requests are answered with is free when all of them have gone.
func TestFreeableRoom(t *testing.T) {
	_, next := budgetOf(limit)
	of, release := next().Share(make([]byte, unit), false)
	defer release()
	for clients, want := range []int64{0, unit, unit} {
		if got := of.Freeable(clients); got != want {
			t.Errorf("with %d clients %d bytes are freeable, want %d", clients, got, want)
		}
	}
	if a := next(); a.Freeable(1) != 0 {
		t.Error("an empty allowance frees room")
	}
}

// A client that is a run was not idle while that waited for room.
func TestRunThatJustGotItsRoomIsNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(limit)
		holder := next()
		holder.Count(9 * unit)
		inner := next()
		// the inner run's client is the outer, which waits for room for a long time
		f := &fakeClient{holds: inner, run: "outer", since: time.Now()}
		inner.Count(unit)
		b.AddClient(f, inner)
		first := next() // older than the outer
		first.TryTake(0)
		outer := next()
		outer.SetRun("outer")
		stop := keepBusy(holder)
		granted := make(chan bool)
		go func() { granted <- outer.Take(4 * unit) }()
		time.Sleep(15 * time.Second)
		if f.gone.Load() > 0 {
			t.Fatal("disconnected while it waits")
		}
		holder.Release(4 * unit) // granted now
		<-granted
		go next().Take(4 * unit) // another needs room a moment later
		synctest.Wait()
		if f.gone.Load() > 0 {
			t.Error("disconnected though it had waited for room until this moment")
		}
		stop()
		b.RemoveClient(f, inner)
		b.SetLimit(1 << 40)
		time.Sleep(time.Second)
	})
}
