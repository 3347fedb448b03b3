package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/wakeup"
)

const (
	// inboxSilence is how long the inbox's connection may be silent before it is
	// asked whether it is alive, and as long again before it is given up.
	inboxSilence = 5 * time.Second
	// A subscription that fails is tried again after inboxFirstPause. Each pause is
	// twice as long as the one before, up to inboxLastPause.
	inboxFirstPause = 100 * time.Millisecond
	inboxLastPause  = 3 * time.Second
	// inboxTellsEach is how often the log is told while it goes on failing.
	inboxTellsEach = 5 * time.Minute
)

// inbox is the one channel on which this process hears of runs that ended, and
// its subscription.
//
// go-redis has PubSub.ChannelWithSubscriptions for this. As of 9.23 (pubsub.go) it
// is not enough:
//   - Its health check writes a PING and waits for no answer, and its reads have no
//     deadline. A peer that vanished is noticed when the kernel gives up sending,
//     which takes minutes.
//   - It tries again every 100 ms for ever, and tells nobody that it fails, or why.
//     Ours makes the pauses longer, logs the reason, and lets those go on who wait
//     for the first subscription.
//   - Its two goroutines end some time after Close. Ours has ended when close
//     returns.
type inbox struct {
	name string
	// copies is the channel that all stores share, for what nobody may have a copy of
	// any more.
	copies  string
	client  client
	timeout time.Duration
	log     *zap.Logger

	// tried is closed when the first subscription is there, or has failed.
	tried chan struct{}
	// ctx ends with the store; background is the goroutine that listens.
	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup

	used    atomic.Bool
	mu      sync.Mutex
	opened  bool
	closed  bool
	current *goredis.PubSub

	subscribers wakeup.Subscribers
}

func newInbox(c client, n names, timeout time.Duration, log *zap.Logger) *inbox {
	ctx, cancel := context.WithCancel(context.Background())
	return &inbox{
		name:    n.inbox(rand.Text()),
		copies:  n.copies(),
		client:  c,
		timeout: timeout,
		log:     log,
		tried:   make(chan struct{}),
		ctx:     ctx,
		cancel:  cancel,
	}
}

// use begins to listen when the store is first used, if there is anybody to tell.
func (i *inbox) use() {
	if !i.used.Load() && i.subscribers.Any() {
		i.used.Store(true)
		i.open()
	}
}

// open begins to listen when it is called first. It reports whether there is nothing
// to wait for: the subscription is there already, or has failed.
func (i *inbox) open() bool {
	i.mu.Lock()
	if !i.opened && !i.closed {
		i.opened = true
		i.background.Add(1)
		go i.run()
	}
	i.mu.Unlock()
	select {
	case <-i.tried:
		return true
	default:
		return false
	}
}

// succeed gives an inbox that was not used yet the name of an earlier one of this
// process. So it also hears of the runs for which somebody has waited since then.
func (i *inbox) succeed(earlier *inbox) { i.name = earlier.name }

// takeOver begins to listen if the earlier inbox does. It waits until it is subscribed
// or has failed to, for no longer than an operation may take.
func (i *inbox) takeOver(earlier *inbox) {
	earlier.mu.Lock()
	listens := earlier.opened
	earlier.mu.Unlock()
	if !listens || i.open() {
		return
	}
	ctx, cancel := context.WithTimeout(i.ctx, i.timeout)
	defer cancel()
	select {
	case <-i.tried:
	case <-ctx.Done():
	}
}

// await waits until the first subscription is there or has failed, for a part of the
// time of an operation.
func (i *inbox) await(ctx context.Context) {
	timer := time.NewTimer(i.timeout / 5)
	defer timer.Stop()
	select {
	case <-i.tried:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// close ends the subscription and returns when nothing listens any more.
func (i *inbox) close() {
	i.mu.Lock()
	i.closed = true
	current := i.current
	i.mu.Unlock()
	i.cancel()
	if current != nil {
		_ = current.Close() // run may have closed it already
	}
	i.background.Wait()
}

// run listens until the store is closed, over one connection after another.
func (i *inbox) run() {
	defer i.background.Done()
	var once sync.Once
	tried := func() { once.Do(func() { close(i.tried) }) }
	pause := inboxFirstPause
	var told time.Time // when the log was last told that it fails; zero while it does not
	for i.ctx.Err() == nil {
		err := i.listen(func() {
			tried()
			pause = inboxFirstPause
			if !told.IsZero() {
				i.log.Info("subscribed to the ends of other replicas' runs again")
				told = time.Time{}
			}
		})
		tried()
		if i.ctx.Err() != nil {
			return
		}
		if time.Since(told) >= inboxTellsEach {
			i.log.Warn("not subscribed to the ends of other replicas' runs; who waits for one looks from time to time", zap.Error(err))
			told = time.Now()
		}
		select {
		case <-time.After(pause):
		case <-i.ctx.Done():
			return
		}
		pause = min(2*pause, inboxLastPause)
	}
}

// listen subscribes, and wakes those for whom messages come, until the connection
// fails.
func (i *inbox) listen(subscribed func()) error {
	subscription, err := i.connect()
	if err != nil {
		return err
	}
	defer func() { _ = subscription.Close() }() // close may have done it already
	asked := false
	for {
		message, err := subscription.ReceiveTimeout(i.ctx, inboxSilence)
		switch {
		case isTimeout(err) && asked:
			return fmt.Errorf("the connection is silent: %w", err)
		case isTimeout(err):
			asked = true
			if err := subscription.Ping(i.ctx); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		asked = false
		switch message := message.(type) {
		case *goredis.Subscription:
			subscribed()
		case *goredis.Message:
			i.wake(message.Payload)
		}
	}
}

// connect makes a subscription that close can end.
func (i *inbox) connect() (*goredis.PubSub, error) {
	subscription := i.client.Subscribe(i.ctx) // to nothing yet, so it does not dial
	i.mu.Lock()
	i.current = subscription
	closed := i.closed
	i.mu.Unlock()
	if closed {
		_ = subscription.Close()
		return nil, idempotency.ErrClosed
	}
	ctx, cancel := context.WithTimeout(i.ctx, i.timeout)
	defer cancel()
	if err := subscription.Subscribe(ctx, i.name, i.copies); err != nil {
		_ = subscription.Close()
		return nil, err
	}
	return subscription, nil
}

func (i *inbox) wake(payload string) {
	key, err := idempotency.ParseKey(payload)
	if err != nil {
		i.log.Warn("a message in the inbox names no key", zap.String("inbox", i.name), zap.Error(err))
		return
	}
	i.subscribers.Wake(key)
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
