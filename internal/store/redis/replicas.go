package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// With wait_replicas, the settlements of kept responses go out in flushes of their own, each
// with a WAIT behind it. WAIT counts what its connection wrote, so the flush has its answer, and
// no other command waits for a slow replica. While fewer replicas are connected than are wanted,
// no WAIT is sent: it would only take time.

// unknownReplicas is a number of connected replicas before the server was asked.
const unknownReplicas = -1

// eventLoop is how long an idle server sleeps, at its default hz. It ends a WAIT when it wakes.
const eventLoop = 100 * time.Millisecond

// waitForReplicas returns the WAIT at the end of a flush. Its reply comes within an attempt, and
// an operation has time for three: the server may not know the script, and a flush may run.
func (p *pipe) waitForReplicas(ctx context.Context) *goredis.IntCmd {
	l := p.pipes.limits
	return goredis.NewIntCmd(ctx, "wait", l.replicas(), toMillis(min(l.attempt()*3/4, l.attempt()-eventLoop*6/5)))
}

// Unreplicated returns how many kept responses were answered before they were known to be on
// as many replicas as Options.WaitReplicas says.
func (s *Store) Unreplicated() int64 { return s.unreplicated.Load() }

// checkReplicated counts and logs a settlement that not enough replicas have. That is no error:
// the response is kept, and its client gets it.
func (s *Store) checkReplicated(ctx context.Context, to target, replicas int64, key idempotency.Key, claimed *idempotency.Record) {
	wanted := s.limits.replicas()
	if to.waits && replicas >= wanted {
		return
	}
	s.unreplicated.Add(1)
	if !to.waits {
		return // the missing replicas are in the log already
	}
	err := fmt.Errorf("%d of %d replicas have it", replicas, wanted)
	if replicas < 0 {
		err = errors.New("it is not known how many replicas have it")
	}
	s.countReplicas(ctx, to.node)
	s.log.Warn("a kept response is answered before it is known to be on the replicas; a failover may lose it, and its key then runs again",
		zap.Stringer("key", key), zap.String("execution_id", claimed.ExecutionID), zap.Int64("wait_replicas", wanted), zap.Error(err))
}

// enoughReplicas reports whether as many replicas are connected to a master as are wanted. It
// asks the master if there were too few, or it has not asked yet.
func (s *Store) enoughReplicas(ctx context.Context, master *goredis.Client) bool {
	wanted := s.limits.replicas()
	connected := s.pipes.to(target{master, true}).connected.Load()
	return connected >= wanted || s.countReplicas(ctx, master) >= wanted
}

// countReplicas returns how many replicas are connected to a master. It logs when enough of them
// become too few, or another number of too few. A master that does not tell, for example
// because the user may not ask, counts as one that has enough.
func (s *Store) countReplicas(ctx context.Context, master *goredis.Client) int64 {
	wanted := s.limits.replicas()
	info, err := master.Info(ctx, "replication").Result()
	if err != nil || infoField(info, "role") != "master" {
		return wanted
	}
	n := int64(0)
	for line := range strings.Lines(info) {
		if strings.HasPrefix(line, "slave") && strings.Contains(line, ",state=online") {
			n++
		}
	}
	before := s.pipes.to(target{master, true}).connected.Swap(n)
	fields := []zap.Field{
		zap.String("address", s.dialer.addressOf(master.Options().Addr)), zap.Int64("connected", n), zap.Int64("wait_replicas", wanted),
	}
	switch {
	case n < wanted && n != before:
		s.log.Warn("fewer replicas are connected than wait_replicas says; kept responses are answered without waiting, and a failover may lose them", fields...)
	case n >= wanted && before < wanted && before != unknownReplicas:
		s.log.Info("enough replicas are connected again", fields...)
	}
	return n
}
