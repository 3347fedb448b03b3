package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// scanAtLeast and scanAtMost bound how many Redis keys the server looks at for
// one page. Those of responses, and of others, count too.
const (
	scanAtLeast = 100
	scanAtMost  = 1000
)

// List implements [idempotency.Store]. The order is that of SCAN, with its
// guarantee: what is there from the first page to the last is listed, possibly
// twice.
func (s *Store) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	at, err := parseCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	if limit < 1 {
		return nil, "", fmt.Errorf("limit %d of a page; it is at least 1", limit)
	}
	ctx, cancel := s.limit(ctx)
	defer cancel()
	keys, next, err := s.scan(ctx, at.scan, int64(min(max(limit, scanAtLeast), scanAtMost)))
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
		// SCAN knows no such limit: the same step again, behind this key.
		keys = keys[:limit]
		at.after = keys[limit-1]
	} else {
		at = listCursor{scan: next}
	}
	page, err := s.readAll(ctx, keys)
	if err != nil {
		return nil, "", s.fail("list", err)
	}
	return page, at.String(), nil
}

// listCursor is where a page begins: at a cursor of SCAN, and there behind a
// key, in hex and in the order of these.
type listCursor struct {
	scan  uint64
	after string
}

// String returns the form that [parseCursor] reads, "" for the end.
func (c listCursor) String() string {
	switch {
	case c.after != "":
		return strconv.FormatUint(c.scan, 10) + "," + c.after
	case c.scan != 0:
		return strconv.FormatUint(c.scan, 10)
	default:
		return ""
	}
}

func parseCursor(text string) (listCursor, error) {
	if text == "" {
		return listCursor{}, nil
	}
	number, after, isWithin := strings.Cut(text, ",")
	scan, err := strconv.ParseUint(number, 10, 64)
	if err == nil && isWithin {
		_, err = idempotency.ParseKey(after)
	}
	if err != nil {
		return listCursor{}, fmt.Errorf("cursor %q is not one that a page came with", text)
	}
	return listCursor{scan: scan, after: after}, nil
}

// scan makes one step and returns the keys in hex, sorted, each once.
func (s *Store) scan(ctx context.Context, from uint64, count int64) (keys []string, next uint64, err error) {
	var names []string
	err = try(ctx, func() (err error) {
		names, next, err = s.client.Scan(ctx, from, keyPrefix+"*", count).Result()
		return err
	})
	for _, name := range names {
		hex := strings.TrimPrefix(name, keyPrefix)
		// Other names with our prefix are not ours.
		if key, err := idempotency.ParseKey(hex); err == nil && key.String() == hex {
			keys = append(keys, hex)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), next, err
}

// readAll looks all keys up in one round trip. Those that have expired since
// are left out.
func (s *Store) readAll(ctx context.Context, keys []string) ([]idempotency.Listed, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	var commands []*goredis.Cmd
	send := func() error {
		pipeline := s.client.Pipeline()
		commands = commands[:0]
		for _, hex := range keys {
			commands = append(commands, lookupScript.EvalSha(ctx, pipeline, []string{keyPrefix + hex}))
		}
		_, err := pipeline.Exec(ctx)
		if answered(err) {
			return nil // each command has its own error
		}
		return err
	}
	err := try(ctx, send)
	if err == nil && says(commands[0].Err(), "NOSCRIPT") {
		if err = lookupScript.Load(ctx, s.client).Err(); err == nil {
			err = try(ctx, send)
		}
	}
	if err != nil {
		return nil, err
	}
	var page []idempotency.Listed
	for i, hex := range keys {
		listed, there, err := s.listed(hex, commands[i])
		if err != nil {
			return nil, err
		}
		if there {
			page = append(page, listed)
		}
	}
	return page, nil
}

// listed reads what was found under one key.
func (s *Store) listed(hex string, command *goredis.Cmd) (_ idempotency.Listed, there bool, err error) {
	key, err := idempotency.ParseKey(hex)
	if err != nil {
		return idempotency.Listed{}, false, err
	}
	listed := idempotency.Listed{Key: key}
	answer, err := s.read(keyPrefix+hex, command)
	var f *found
	if err == nil {
		f, err = lookedUp(key, answer)
	}
	var unreadable *idempotency.UnreadableError
	switch {
	case errors.As(err, &unreadable):
		listed.Unreadable = err
	case err != nil:
		return idempotency.Listed{}, false, err
	case f == nil:
		return idempotency.Listed{}, false, nil
	default:
		listed.Record = f.record
	}
	return listed, true, nil
}
