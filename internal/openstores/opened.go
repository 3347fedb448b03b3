package openstores

import (
	"cmp"
	"context"
	"slices"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Opened is a store that is open in this process, as operators know it: one, however often
// it is open under different settings. What they do, the first of these does. The others let
// their copies go before the operator has an answer: what the store tells them may come
// later, or be lost.
type Opened struct {
	*Store
	also []*Store
}

// All returns the stores that are open now, entered, in a stable order.
func (s *Set) All() []*Opened {
	entered := slices.DeleteFunc(s.all(), func(o *Store) bool { return !o.enter() })
	// Those that no configuration uses any more come after the others of their key: they
	// may have settings with which nothing answers.
	slices.SortFunc(entered, func(a, b *Store) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(unused(a), unused(b)), cmp.Compare(a.entry.times, b.entry.times))
	})
	var all []*Opened
	for _, o := range entered {
		if last := len(all) - 1; last >= 0 && all[last].key == o.key {
			all[last].also = append(all[last].also, o)
		} else {
			all = append(all, &Opened{Store: o})
		}
	}
	return all
}

func unused(o *Store) int {
	if o.inUse() {
		return 0
	}
	return 1
}

// inUse reports whether a configuration uses the store. Else it is open only until what
// is left to do is done.
func (o *Store) inUse() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.configurations) > 0
}

// each calls f with the store under each of its settings.
func (o *Opened) each(f func(*Store)) {
	f(o.Store)
	for _, other := range o.also {
		f(other)
	}
}

// InUse reports whether a configuration uses the store. Else no request comes to it, and it
// is open only until what is left to do is done.
func (o *Opened) InUse() (is bool) {
	o.each(func(store *Store) { is = is || store.inUse() })
	return is
}

// Namespaces returns those of the configurations that use the store or have used it: what
// the keys of a delivery ID begin with depends on them.
func (o *Opened) Namespaces() (names []string) {
	o.each(func(store *Store) {
		store.mu.Lock()
		defer store.mu.Unlock()
		for _, name := range store.namespaces {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	})
	return names
}

// Free frees a key, as [engine.Engine.Free] does.
func (o *Opened) Free(ctx context.Context, key idempotency.Key, seen idempotency.Seen) error {
	defer o.freed(key) // also with an error: perhaps it was done
	return o.Store.Free(ctx, key, seen)
}

// Forget removes the record of a key, as [engine.Engine.Forget] does.
func (o *Opened) Forget(ctx context.Context, key idempotency.Key, seen idempotency.Seen) error {
	defer o.freed(key)
	return o.Store.Forget(ctx, key, seen)
}

func (o *Opened) freed(key idempotency.Key) {
	for _, other := range o.also {
		other.Freed(key)
	}
}

// Leave ends the use of the store.
func (o *Opened) Leave() { o.each((*Store).Leave) }
