package redis

import (
	"context"
	"strings"

	"go.uber.org/zap"
)

// greet asks a server what the store has to know of it: its time, whether it is a
// replica, and whether it may evict records. It does so once, before the first command,
// in one round trip. A replica is asked again before each claim.
func (c *contact) greet(ctx context.Context) error {
	return try(ctx, func() error {
		pipeline := c.client.Pipeline()
		now := pipeline.Time(ctx)
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
		s := c.current.Load()
		s.clock.learn(now.Val().UnixMilli())
		// A user that may not read these gets no warning. A replica that takes writes
		// loses them when it next follows its master.
		wasReplica := s.replica.Swap(infoField(replication.Val(), "role") == "slave")
		if s.replica.Load() && !wasReplica {
			c.log.Error("this redis is a replica: requests with a key are refused until it is a master; set the address of the master, or let sentinels name it",
				zap.String("address", s.address))
		}
		if policy := evicts(memory.Val()); s.greeted.CompareAndSwap(false, true) && policy != "" {
			c.log.Warn("this redis may evict records, and an evicted key runs again; set maxmemory-policy noeviction",
				zap.String("address", s.address), zap.String("maxmemory_policy", policy))
		}
		return nil
	})
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
