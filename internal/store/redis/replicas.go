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

// With wait_replicas, the settlements of kept responses are sent in separate flushes, each with a WAIT
// at its end. WAIT covers the writes of its connection, so its reply is right for the whole flush, and
// other commands do not wait for a slow replica. While fewer replicas are connected than wait_replicas,
// settlements do not wait: a WAIT would only time out.

// unknownReplicas is the number of connected replicas before the server was asked.
const unknownReplicas = -1

// eventLoop is how long an idle server sleeps, at its default hz. When it wakes up, it ends a WAIT that
// has timed out.
const eventLoop = 100 * time.Millisecond

// waitForReplicas returns the WAIT at the end of a flush. Its timeout is short enough that the reply
// comes within the attempt timeout.
func (p *pipe) waitForReplicas(ctx context.Context) *goredis.IntCmd {
	l := p.pipes.limits
	return goredis.NewIntCmd(ctx, "wait", l.replicas(), toMillis(min(l.attemptTimeout()*3/4, l.attemptTimeout()-eventLoop*6/5)))
}

// Unreplicated returns for how many kept responses Settle returned before Options.WaitReplicas replicas
// were known to have them.
func (s *Store) Unreplicated() int64 { return s.unreplicated.Load() }

// checkReplicated counts and logs a settlement that is on too few replicas. That is not an error: the
// response is kept, and its client gets it.
func (s *Store) checkReplicated(ctx context.Context, to target, replicas int64, key idempotency.Key, claimed *idempotency.Record) {
	wanted := s.limits.replicas()
	if to.waits && replicas >= wanted {
		return
	}
	s.unreplicated.Add(1)
	if !to.waits {
		return // countReplicas has logged the missing replicas
	}
	err := fmt.Errorf("%d of %d replicas have it", replicas, wanted)
	if replicas < 0 {
		err = errors.New("the number of replicas that have it is unknown")
	}
	s.countReplicas(ctx, to.node)
	s.options.Logger.Warn("a kept response is answered before it is known to be on the replicas; a failover may lose it, and its key then runs again",
		zap.Stringer("key", key), zap.String("execution_id", claimed.ExecutionID), zap.Int64("wait_replicas", wanted), zap.Error(err))
}

// enoughReplicas reports whether at least wait_replicas replicas are connected to a master. It asks the
// master if there were too few before, or it has not asked yet.
func (s *Store) enoughReplicas(ctx context.Context, master *goredis.Client) bool {
	wanted := s.limits.replicas()
	connected := s.pipes.to(target{master, true}).connected.Load()
	return connected >= wanted || s.countReplicas(ctx, master) >= wanted
}

// countReplicas returns how many replicas are connected to a master. If that is unknown, because the
// master does not answer in time or the user may not use INFO, enough count as connected. Callers share
// one INFO: a burst of settlements would take all connections for it.
func (s *Store) countReplicas(ctx context.Context, master *goredis.Client) int64 {
	counted := s.pipes.to(target{master, true}).counts.DoChan("", func() (any, error) {
		background, cancel := context.WithTimeout(s.dialer.ctx, s.limits.timeout())
		defer cancel()
		return s.askForReplicas(background, master), nil
	})
	select {
	case result := <-counted:
		return result.Val.(int64)
	case <-ctx.Done():
		return s.limits.replicas()
	}
}

// askForReplicas asks a master how many replicas are connected. It logs when the number becomes too low
// or changes while it is too low, and when it is high enough again.
func (s *Store) askForReplicas(ctx context.Context, master *goredis.Client) int64 {
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
		s.options.Logger.Warn("fewer replicas than wait_replicas are connected; kept responses are answered without waiting, and a failover may lose them", fields...)
	case n >= wanted && before < wanted && before != unknownReplicas:
		s.options.Logger.Info("enough replicas are connected again", fields...)
	}
	return n
}

// sentinelClient is what go-redis uses as the address of a client behind sentinels.
const sentinelClient = "FailoverClient"

// addressOf returns the address of a client's server.
func (d *dialer) addressOf(client string) string {
	if master := d.master.Load(); client == sentinelClient && master != nil {
		return *master
	}
	return client
}
