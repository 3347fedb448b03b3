package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
)

// greet asks a server what the store has to know of it: its time, its version, whether it is a
// replica, and whether it may evict records. It does so once, before the first command,
// in one round trip. A replica is asked again before each claim, and now and then over
// another connection; and any server, when somebody wants to know whether it is ready.
func (c *contact) greet(ctx context.Context) error {
	return try(ctx, func() error {
		sent := time.Now()
		pipeline := c.client.Pipeline()
		now := pipeline.Time(ctx)
		about := pipeline.Info(ctx, "server")
		memory := pipeline.Info(ctx, "memory")
		replication := pipeline.Info(ctx, "replication")
		_, err := pipeline.Exec(ctx)
		switch {
		case err != nil && !answered(err):
			return err
		case now.Err() != nil:
			return now.Err()
		case now.Val().IsZero(): // see afterAll
			return err
		}
		if err := oldServer(about.Val()); err != nil {
			return err // and ask again: it may be replaced by a newer one
		}
		s := c.current.Load()
		s.clock.learn(now.Val().UnixMilli(), sent)
		// A user that may not read these gets no warning. A replica that takes writes
		// loses them when it next follows its master.
		isReplica := infoField(replication.Val(), "role") == "slave"
		wasReplica := s.replica.Swap(isReplica)
		if isReplica && !wasReplica {
			c.log.Error("this redis is a replica: requests with a key are refused until it is a master; set the address of the master, or let sentinels name it",
				zap.String("address", s.address))
		}
		if isReplica || wasReplica {
			c.redial(time.Now(), isReplica)
		}
		if policy := evicts(memory.Val()); s.greeted.CompareAndSwap(false, true) && policy != "" {
			c.log.Warn("this redis may evict records, and an evicted key runs again; set maxmemory-policy noeviction",
				zap.String("address", s.address), zap.String("maxmemory_policy", policy))
		}
		return nil
	})
}

// oldestRedis is the first version in which SET takes both NX and GET.
const oldestRedis = 7

// oldServer reads the server section of INFO. It returns an error for a server that is
// too old. One that does not say what it is may try: its own errors tell the rest.
func oldServer(info string) error {
	version := infoField(info, "redis_version")
	if infoField(info, "valkey_version") != "" || infoField(info, "dragonfly_version") != "" {
		return nil // they took over a version of Redis for those who ask
	}
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < oldestRedis {
		return &tooOldError{version}
	}
	return nil
}

// tooOldError says that a server lacks what the store needs. No command was sent.
type tooOldError struct{ version string }

func (e *tooOldError) Error() string {
	return fmt.Sprintf("the server is Redis %s; caddy-dedup needs Redis %d.0 or newer, or Valkey", e.version, oldestRedis)
}

// evicts reads the memory section of INFO. It returns the policy of a server that may
// evict keys before their time, "" where it may not, or where that is not known.
func evicts(info string) string {
	limit, policy := infoField(info, "maxmemory"), infoField(info, "maxmemory_policy")
	if limit == "" || limit == "0" || policy == "noeviction" {
		return ""
	}
	return policy
}

// infoField returns a field of a reply to INFO, "" if it has none of this name.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if field, value, _ := strings.Cut(strings.TrimSpace(line), ":"); field == name {
			return value
		}
	}
	return ""
}
