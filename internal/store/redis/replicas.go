package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// replicas waits until kept responses are on replicas.
//
// WAIT blocks its connection while a replica is behind, and it counts only what that
// connection wrote. So there is at most one WAIT at a time on each master. It is a
// round for all settlements that were written before it began. The round writes a
// mark first. The mark follows those settlements in the stream to the replicas: a
// replica that has the mark has them too.
//
// The same address can lead to another master by then, after a failover. So the round also
// looks whether that one has the settlements.
//
// With fewer replicas connected than are wanted, WAIT would only cost time. Then a round
// asks for their number instead, until there are enough.
type replicas struct {
	// wanted is how many replicas are to have a response; 0 waits for none.
	wanted  int
	timeout time.Duration
	log     *zap.Logger
	// missed counts the settlements that were answered without their replicas.
	missed     atomic.Int64
	background sync.WaitGroup

	mu sync.Mutex
	// next has an entry for each master on which a round is under way: the round
	// after it, or nil where nobody waits for one.
	next map[executor]*round
	// connected has the number of replicas that each master last said to have.
	connected map[executor]int
}

// errTooFew says that a round has not waited.
var errTooFew = errors.New("fewer replicas are connected than are wanted")

// errNotThere says that a round has reached a master without the settlement.
var errNotThere = errors.New("the redis that was asked for its replicas does not have it: a failover has lost it, or it was removed since")

// round is one WAIT.
type round struct {
	// mark is the Redis key that the round writes. It belongs to one of the
	// settlements, so that it lies in a slot of this master.
	mark string
	of   []*settled
	done chan struct{}
	err  error // when it is done
}

// settled is a settlement for which a round is made.
type settled struct {
	record, token string // the name of the record, and the token that it must have
	err           error  // when the round is done
}

// headSize is how much of a value shows whether it is that of the settlement.
func (s *settled) headSize() int { return headSize + len(s.token) }

// isIn reports whether a value that begins in this way is that of the settlement.
func (s *settled) isIn(head string) bool {
	if len(head) != s.headSize() || head[:atState] != valueForm || head[atState] != ended {
		return false
	}
	n, ok := digits([]byte(head[atToken:atChannels]))
	return ok && int(n) == len(s.token) && head[headSize:] == s.token
}

// markLife is how long the key lives that a round writes.
const markLife = time.Second

func newReplicas(o Options) *replicas {
	return &replicas{
		wanted: o.WaitReplicas, timeout: o.Timeout, log: o.Logger,
		next: make(map[executor]*round), connected: make(map[executor]int),
	}
}

// Unreplicated returns how many kept responses were answered before they were
// known to be on as many replicas as Options.WaitReplicas wants.
func (s *Store) Unreplicated() int64 { return s.replicas.missed.Load() }

// awaitReplicas waits until a kept response is on the replicas of the master that
// has settled it, or until the time of the operation is over. The latter is no error:
// the response is kept, and its client is to have it.
func (s *Store) awaitReplicas(ctx context.Context, master executor, key idempotency.Key, claimed *idempotency.Record) {
	err := s.replicas.await(ctx, master, s.names.mark(key, claimed.Token), &settled{record: s.names.record(key), token: claimed.Token})
	if err == nil {
		return
	}
	s.replicas.missed.Add(1)
	if errors.Is(err, errTooFew) {
		return // it was logged when their number changed
	}
	s.log.Warn("a kept response is answered before it is known to be on the replicas; a failover may lose it, and its key then runs again",
		zap.Stringer("key", key), zap.String("execution_id", claimed.ExecutionID),
		zap.Int("wait_replicas", s.replicas.wanted), zap.Error(err))
}

// await joins the next round on a master, which begins at once if none is under
// way.
func (r *replicas) await(ctx context.Context, master executor, mark string, of *settled) error {
	joined := r.join(master, mark, of)
	select {
	case <-joined.done:
		return cmp.Or(joined.err, of.err)
	case <-ctx.Done():
		return fmt.Errorf("not within the time of the operation: %w", ctx.Err())
	}
}

func (r *replicas) join(master executor, mark string, of *settled) *round {
	r.mu.Lock()
	defer r.mu.Unlock()
	waiting, busy := r.next[master]
	if waiting == nil {
		waiting = &round{mark: mark, done: make(chan struct{})}
	}
	waiting.of = append(waiting.of, of)
	if busy {
		r.next[master] = waiting
		return waiting
	}
	r.next[master] = nil
	r.background.Go(func() { r.run(master, waiting) })
	return waiting
}

// run makes rounds on a master until nobody waits for one.
func (r *replicas) run(master executor, now *round) {
	for now != nil {
		now.err = r.wait(master, now)
		close(now.done)
		r.mu.Lock()
		now = r.next[master]
		if now == nil {
			delete(r.next, master)
		} else {
			r.next[master] = nil
		}
		r.mu.Unlock()
	}
}

// wait looks for the settlements of a round, writes its mark, and waits for the replicas to
// have that, in one round trip: so all of it is about the same master.
func (r *replicas) wait(master executor, now *round) error {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	if r.tooFew(ctx, master) {
		return errTooFew
	}
	pipeline := master.client.WithTimeout(r.timeout).Pipeline()
	heads := make([]*goredis.StringCmd, len(now.of))
	for i, of := range now.of {
		heads[i] = pipeline.GetRange(ctx, of.record, 0, int64(of.headSize()-1))
	}
	mark := pipeline.Set(ctx, now.mark, "", markLife)
	// WAIT has less time than we have, so that its reply still comes.
	had := pipeline.Do(ctx, "WAIT", r.wanted, toMillis(r.timeout*4/5))
	if _, err := pipeline.Exec(ctx); err != nil && !answered(err) {
		return err
	}
	if err := mark.Err(); err != nil {
		return err
	}
	n, err := had.Int()
	if err != nil {
		return err
	}
	if n < r.wanted {
		r.count(ctx, master)
		return fmt.Errorf("%d of %d replicas have it", n, r.wanted)
	}
	for i, of := range now.of {
		if of.err = heads[i].Err(); of.err == nil && !of.isIn(heads[i].Val()) {
			of.err = errNotThere
		}
	}
	return nil
}

// tooFew reports whether fewer replicas are connected to a master than are wanted. It
// asks the master where that was so before, or is not known.
func (r *replicas) tooFew(ctx context.Context, master executor) bool {
	r.mu.Lock()
	n, known := r.connected[master]
	r.mu.Unlock()
	if !known || n < r.wanted {
		n = r.count(ctx, master)
	}
	return n < r.wanted
}

// count returns how many replicas are connected to a master, and logs where enough of
// them become too few, or another number of too few. A master that does not say, for
// example because the user may not ask, counts as one that has enough.
func (r *replicas) count(ctx context.Context, master executor) int {
	info, err := master.client.Info(ctx, "replication").Result()
	if err != nil || infoField(info, "role") != "master" {
		return r.wanted
	}
	n := 0
	for line := range strings.Lines(info) {
		if strings.HasPrefix(line, "slave") && strings.Contains(line, ",state=online") {
			n++
		}
	}
	r.mu.Lock()
	before, known := r.connected[master]
	r.connected[master] = n
	r.mu.Unlock()
	fields := []zap.Field{
		zap.String("address", master.address), zap.Int("connected", n), zap.Int("wait_replicas", r.wanted),
	}
	switch {
	case n < r.wanted && (!known || n != before):
		r.log.Warn("fewer replicas are connected than wait_replicas wants; kept responses are answered without waiting for any, and a failover may lose them", fields...)
	case n >= r.wanted && known && before < r.wanted:
		r.log.Info("enough replicas are connected again", fields...)
	}
	return n
}
