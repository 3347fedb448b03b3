package redis

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// listCursor is where a page begins: on a master, at a cursor of SCAN, and behind one
// of the keys that this step of SCAN returns, in hex, when they are sorted.
type listCursor struct {
	// masters is a hash of the addresses of all masters, and master an index into
	// them. Both are zero where there is only one master.
	masters uint32
	master  int
	scan    uint64
	after   string
}

// among returns the cursor for the masters as they are now: the same, or the
// beginning if the masters have changed.
func (c listCursor) among(all []*goredis.Client) listCursor {
	name := uint32(0)
	if len(all) > 1 {
		h := fnv.New32a()
		for _, master := range all {
			_, _ = fmt.Fprintln(h, master.Options().Addr) // a hash never fails
		}
		name = h.Sum32()
	}
	if c.masters != name || c.master >= len(all) {
		return listCursor{masters: name}
	}
	return c
}

// next returns the cursor behind a step of SCAN, which returned the given cursor of
// its own. masters is how many there are. It is zero at the end.
func (c listCursor) next(scan uint64, masters int) listCursor {
	switch {
	case scan != 0:
		return listCursor{masters: c.masters, master: c.master, scan: scan}
	case c.master+1 < masters:
		return listCursor{masters: c.masters, master: c.master + 1}
	default:
		return listCursor{}
	}
}

// String returns the form that [parseCursor] reads, "" for the end.
func (c listCursor) String() string {
	if c == (listCursor{}) {
		return ""
	}
	text := strconv.FormatUint(c.scan, 10)
	if c.masters != 0 {
		text = fmt.Sprintf("%08x.%d.%s", c.masters, c.master, text)
	}
	if c.after != "" {
		text += "," + c.after
	}
	return text
}

func parseCursor(text string) (listCursor, error) {
	if text == "" {
		return listCursor{}, nil
	}
	wrong := fmt.Errorf("%w: %q", idempotency.ErrCursor, text)
	where, after, isWithin := strings.Cut(text, ",")
	if _, err := idempotency.ParseKey(after); isWithin && err != nil {
		return listCursor{}, wrong
	}
	c := listCursor{after: after}
	parts := strings.Split(where, ".")
	if len(parts) == 3 {
		masters, err1 := strconv.ParseUint(parts[0], 16, 32)
		master, err2 := strconv.ParseUint(parts[1], 10, 16)
		if err1 != nil || err2 != nil {
			return listCursor{}, wrong
		}
		c.masters, c.master = uint32(masters), int(master)
	} else if len(parts) != 1 {
		return listCursor{}, wrong
	}
	var err error
	if c.scan, err = strconv.ParseUint(parts[len(parts)-1], 10, 64); err != nil {
		return listCursor{}, wrong
	}
	return c, nil
}
