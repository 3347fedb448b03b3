package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// scanAtLeast and scanAtMost limit how many Redis keys the server looks at for one
// page of all records. The keys of responses, and those of other programs, count too.
const (
	scanAtLeast = 100
	scanAtMost  = 1000
)

// findAtOnce is that limit where few of the keys are wanted: the server only looks at
// their names. It takes 2 milliseconds for these, and who else asks it waits for so long:
// a million keys take 500 steps.
const findAtOnce = 2000

// findSeveralAtOnce is that limit where there are several beginnings: the server sends
// the name of each record, which takes four times as long as to look at it.
const findSeveralAtOnce = 500

// List implements [idempotency.Store]. The order and the guarantee are those of SCAN:
// what is there from the first page to the last is listed, possibly twice. In a
// cluster one master comes after the other. When the masters change, the list begins
// anew. The keys of a slot that moves from one master to another meanwhile may be
// missed.
func (s *Store) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	return s.page(ctx, cursor, limit, scanned{pattern: s.names.records(), count: min(max(limit, scanAtLeast), scanAtMost)})
}

// Find implements [idempotency.Store], as List does. The server goes through the names
// of all its keys, in steps, and sends those of the one beginning. There is no pattern
// for several: then it sends those of all records.
func (s *Store) Find(ctx context.Context, of []idempotency.Beginning, cursor string, limit int) ([]idempotency.Listed, string, error) {
	of = idempotency.SortBeginnings(of)
	what := scanned{pattern: s.names.records(), count: findSeveralAtOnce, of: make(map[string]bool, len(of))}
	for _, begins := range of {
		what.of[begins.String()] = true
	}
	if len(of) == 1 {
		what.pattern, what.count = s.names.beginning(of[0]), findAtOnce
	}
	return s.page(ctx, cursor, limit, what)
}

// scanned is what SCAN is to return.
type scanned struct {
	pattern string
	// count is how many Redis keys the server looks at in one step.
	count int
	// of are the beginnings of the wanted keys, in hex; nil for all keys.
	of map[string]bool
}

func (w scanned) wants(hex string) bool {
	return w.of == nil || w.of[hex[:len(idempotency.Beginning{}.String())]]
}

// page makes one step of SCAN, and looks up the records that it has found.
func (s *Store) page(ctx context.Context, cursor string, limit int, what scanned) ([]idempotency.Listed, string, error) {
	at, err := parseCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	if limit < 1 {
		return nil, "", fmt.Errorf("limit %d of a page; it is at least 1", limit)
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	all, err := masters(ctx, s.client)
	if err != nil {
		return nil, "", s.fail("list", err)
	}
	at = at.among(all)
	keys, next, err := s.scan(ctx, all[at.master], at.scan, what)
	if err != nil {
		return nil, "", s.fail("list", err)
	}
	if at.after != "" {
		i, isLast := slices.BinarySearch(keys, at.after)
		if isLast {
			i++
		}
		keys = keys[i:]
	}
	if len(keys) > limit {
		// One step of SCAN returned more than a page takes. The next page makes the
		// same step, and begins behind this key.
		keys = keys[:limit]
		at.after = keys[limit-1]
	} else {
		at = at.next(next, len(all))
	}
	page, err := s.readAll(ctx, keys)
	if err != nil {
		return nil, "", s.fail("list", err)
	}
	return page, at.String(), nil
}

// scan makes one step of SCAN and returns the keys in hex, sorted, each once.
func (s *Store) scan(ctx context.Context, master *goredis.Client, from uint64, what scanned) (keys []string, next uint64, err error) {
	var names []string
	err = try(ctx, func() (err error) {
		names, next, err = master.Scan(ctx, from, what.pattern, int64(what.count)).Result()
		return err
	})
	for _, name := range names {
		if hex, ok := s.names.keyIn(name); ok && what.wants(hex) {
			keys = append(keys, hex)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), next, err
}

// readAll looks up all keys in one round trip. Those that have expired since the SCAN
// are left out.
func (s *Store) readAll(ctx context.Context, keys []string) ([]idempotency.Listed, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	commands, err := s.lookUpAll(ctx, keys, false)
	if slices.ContainsFunc(commands, func(c *request) bool { return hasCode(c.Err(), "NOSCRIPT") }) {
		commands, err = s.lookUpAll(ctx, keys, true)
	}
	if err != nil {
		return nil, err
	}
	var page []idempotency.Listed
	for i, hex := range keys {
		listed, there, err := readListed(hex, s.names.recordOf(hex), commands[i])
		if err != nil {
			return nil, err
		}
		if there {
			page = append(page, listed)
		}
	}
	return page, nil
}

// lookUpAll runs the script on all keys in one round trip, by its hash or by its
// text. Where the server answered with errors, each command has its own.
func (s *Store) lookUpAll(ctx context.Context, keys []string, byText bool) (commands []*request, err error) {
	err = try(ctx, func() error {
		pipeline := s.client.Pipeline()
		commands = commands[:0]
		for _, hex := range keys {
			look := newScript(ctx, lookupScript, byText, []string{s.names.recordOf(hex)})
			_ = pipeline.Process(ctx, look) // it is only queued here
			commands = append(commands, look)
		}
		_, err := pipeline.Exec(ctx)
		if answered(err) {
			return nil
		}
		return err
	})
	return commands, err
}

// readListed reads what was found under the name of one key's record.
func readListed(hex, name string, command *request) (_ idempotency.Listed, there bool, err error) {
	key, err := idempotency.ParseKey(hex)
	if err != nil {
		return idempotency.Listed{}, false, err
	}
	answer, err := readReply(name, &command.Cmd)
	listed := idempotency.Listed{Key: key}
	var f *found
	if err == nil {
		f, err = lookedUp(key, name, answer)
	}
	var unreadable *idempotency.UnreadableError
	switch {
	case errors.As(err, &unreadable):
		listed.Unreadable = err
	case err != nil:
		return idempotency.Listed{}, false, err
	case f == nil || f.record == nil || f.withdrawn: // it expired, or a forced run lapsed over one that did, or nobody has claimed it
		return idempotency.Listed{}, false, nil
	default:
		listed.Record, listed.Now = f.record, f.now
	}
	return listed, true, nil
}
