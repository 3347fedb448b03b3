package redis

import (
	"context"
	"strings"

	"go.uber.org/zap"
)

// greet asks a server what the store has to know of it: its time, and whether it may
// evict records. It does so once, before the first claim, in one round trip.
func (c *contact) greet(ctx context.Context) error {
	return try(ctx, func() error {
		pipeline := c.client.Pipeline()
		now := pipeline.Time(ctx)
		memory := pipeline.Info(ctx, "memory")
		if _, err := pipeline.Exec(ctx); err != nil && !answered(err) {
			return err
		}
		if now.Err() != nil {
			return now.Err()
		}
		s := c.current.Load()
		s.clock.learn(now.Val().UnixMilli())
		// A user that may not read this gets no warning.
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
	limit, policy := "", ""
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "maxmemory":
			limit = value
		case "maxmemory_policy":
			policy = value
		}
	}
	if limit == "" || limit == "0" || policy == "noeviction" {
		return ""
	}
	return policy
}
