package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/wakeup"
)

const (
	// silenceTimeout is how long the subscription may be silent before it sends a PING, and
	// as long again before it is closed.
	silenceTimeout = 5 * time.Second
	// The inbox subscribes again minPause after a failure. Each pause is twice as long as the
	// previous one, up to maxPause.
	minPause = 100 * time.Millisecond
	maxPause = 3 * time.Second
	// failureLogInterval is the interval of log entries while subscribing keeps failing.
	failureLogInterval = 5 * time.Minute
)

// inbox is the channel on which this process receives the keys of runs that have ended, with its
// subscription.
//
// go-redis has PubSub.ChannelWithSubscriptions for this. As of 9.23 (pubsub.go) it is not enough:
//   - Its health check writes a PING and does not wait for the reply, and its reads have no
//     deadline. If the server vanishes, it notices when the kernel stops retransmitting, after minutes.
//   - It retries every 100 ms, and does not report failures.
//   - Its two goroutines may still run after Close returns.
type inbox struct {
	name string
	// copies is the channel, shared by all stores, for keys whose kept responses were removed or
	// replaced.
	copies string
	client goredis.UniversalClient
	log    *zap.Logger

	// ctx ends with the store; background has the goroutine that calls run.
	ctx        context.Context
	cancel     context.CancelFunc
	start      sync.Once
	background sync.WaitGroup

	subscribers wakeup.Subscribers
}

func newInbox(c goredis.UniversalClient, n names, log *zap.Logger) *inbox {
	name, copies := n.inbox(rand.Text()), n.copies()
	// The handshake of the connection subscribes. That go-redis sends SUBSCRIBE again changes nothing.
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), subscribing{}, []string{name, copies}))
	return &inbox{name: name, copies: copies, client: c, log: log, ctx: ctx, cancel: cancel}
}

// openIfSubscribed starts run at the first call with subscribers.
func (i *inbox) openIfSubscribed() {
	if i.subscribers.Any() {
		i.start.Do(func() { i.background.Go(i.run) })
	}
}

// close ends the subscription, and returns when run has returned.
func (i *inbox) close() {
	i.cancel()
	i.start.Do(func() {}) // run does not start any more
	i.background.Wait()
}

// run receives messages until the store is closed, and subscribes again after each failure.
func (i *inbox) run() {
	pause := minPause
	var logged time.Time // time of the last log entry of a failure; zero while subscribed
	for i.ctx.Err() == nil {
		err := i.listen(func() {
			pause = minPause
			if !logged.IsZero() {
				i.log.Info("subscribed to the ends of other replicas' runs again")
				logged = time.Time{}
			}
		})
		if i.ctx.Err() != nil {
			return
		}
		if time.Since(logged) >= failureLogInterval {
			i.log.Warn("not subscribed to the ends of other replicas' runs; requests that wait for one poll the store", zap.Error(err))
			logged = time.Now()
		}
		select {
		case <-time.After(pause):
		case <-i.ctx.Done():
			return
		}
		pause = min(2*pause, maxPause)
	}
}

// listen subscribes, and wakes the subscribers at each message, until the connection fails.
func (i *inbox) listen(subscribed func()) error {
	subscription := i.client.Subscribe(i.ctx) // without channels, so it does not dial yet
	defer func() { _ = subscription.Close() }()
	defer context.AfterFunc(i.ctx, func() { _ = subscription.Close() })()
	ctx, cancel := context.WithTimeout(i.ctx, dialTimeout)
	err := subscription.Subscribe(ctx, i.name, i.copies)
	cancel()
	if err != nil {
		return err
	}
	pinged := false
	for {
		message, err := subscription.ReceiveTimeout(i.ctx, silenceTimeout)
		switch {
		case isTimeout(err) && pinged:
			return fmt.Errorf("the connection is silent: %w", err)
		case isTimeout(err):
			pinged = true
			if err := subscription.Ping(i.ctx); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		pinged = false
		switch message := message.(type) {
		case *goredis.Subscription:
			subscribed()
		case *goredis.Message:
			i.wake(message.Payload)
		}
	}
}

func (i *inbox) wake(payload string) {
	key, err := idempotency.ParseKey(payload)
	if err != nil {
		i.log.Warn("a message in the inbox is not a key", zap.String("inbox", i.name), zap.Error(err))
		return
	}
	i.subscribers.Wake(key)
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
