package redis

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A password is replaced while runs are in flight. The configuration that knows the new one
// opens the store anew, and the store of the one before has still to renew leases and to
// keep responses, perhaps over connections that are not made yet, at a server that refuses
// the old password. So a store that is refused logs in as the one that this process has
// opened last at the same place.
//
// Only one that has claimed before does so: it may have runs in flight, and its login was
// good. One that was never accepted is a mistake in a configuration, which must not look well
// because of another handler's store, and as another user.
//
// Sentinels have passwords of their own. A store that they refuse has them asked where the
// master is by the one that was opened last. It logs in at the master as it does otherwise.

// login is who a connection is for.
type login struct{ username, password string }

// logins are those that one store can use.
type logins struct {
	place string
	own   login
	// accepted says that the server has accepted the own login.
	accepted atomic.Bool
	// dial connects to the master that the sentinels name; nil without sentinels. The
	// mutex of openLogins guards it.
	dial dialFunc

	mu sync.Mutex
	// latest says that the login of the store which was opened last is used, not the own.
	latest bool
	turned time.Time // when that changed
}

// turnEvery is the least time between two changes of the login. Operations that have failed
// together are one refusal.
const turnEvery = time.Second

// openLogins are those of the stores that are open in this process, by their places, in the
// order in which they were opened.
var openLogins struct {
	mu sync.Mutex
	at map[string][]*logins
}

// enterLogins notes the login of a store that is opened.
func enterLogins(o Options) *logins {
	l := &logins{place: o.place(), own: login{o.Username, o.Password}}
	openLogins.mu.Lock()
	defer openLogins.mu.Unlock()
	if openLogins.at == nil {
		openLogins.at = make(map[string][]*logins)
	}
	openLogins.at[l.place] = append(openLogins.at[l.place], l)
	return l
}

// place says where a store is. A password that is only sent over TLS is not for a store
// that connects in the clear.
func (o Options) place() string {
	return fmt.Sprintf("%q %q %d %q %t %t", o.Addresses, o.Sentinel, o.DB, o.Prefix, o.Cluster, o.TLS != nil)
}

func (l *logins) leave() {
	if l == nil {
		return
	}
	openLogins.mu.Lock()
	defer openLogins.mu.Unlock()
	left := slices.DeleteFunc(openLogins.at[l.place], func(other *logins) bool { return other == l })
	openLogins.at[l.place] = left
	if len(left) == 0 {
		delete(openLogins.at, l.place)
	}
}

// provider returns what go-redis asks for the login of each new connection, nil where there
// is only the one of its options.
func (l *logins) provider() func(context.Context) (username, password string, err error) {
	if l == nil {
		return nil
	}
	return func(context.Context) (username, password string, err error) {
		use := l.now()
		return use.username, use.password, nil
	}
}

func (l *logins) now() login {
	l.mu.Lock()
	latest := l.latest
	l.mu.Unlock()
	if !latest {
		return l.own
	}
	openLogins.mu.Lock()
	defer openLogins.mu.Unlock()
	open := openLogins.at[l.place]
	if len(open) == 0 {
		return l.own // the store was closed meanwhile
	}
	return open[len(open)-1].own
}

// dialBy says how the store connects to the master that its sentinels name.
func (l *logins) dialBy(dial dialFunc) {
	if l == nil {
		return
	}
	openLogins.mu.Lock()
	defer openLogins.mu.Unlock()
	l.dial = dial
}

// dialAsLatest connects, for a store that the sentinels refuse, as the one that was opened
// last does. Otherwise it returns the reason why there is no connection.
func (l *logins) dialAsLatest(ctx context.Context, network, address string, reason error) (net.Conn, error) {
	if l == nil || !l.accepted.Load() || !refusesLogin(reason) {
		return nil, reason
	}
	openLogins.mu.Lock()
	var dial dialFunc
	if open := openLogins.at[l.place]; len(open) > 0 && open[len(open)-1] != l {
		dial = open[len(open)-1].dial
	}
	openLogins.mu.Unlock()
	if dial == nil {
		return nil, reason
	}
	return dial(ctx, network, address)
}

// accept says that the server has taken a claim.
func (l *logins) accept() {
	if l != nil && !l.accepted.Load() {
		l.accepted.Store(true)
	}
}

// refused says that the server has refused a login.
func (l *logins) refused(now time.Time) {
	if l == nil || !l.accepted.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.turned) >= turnEvery {
		l.latest, l.turned = !l.latest, now
	}
}

// refusesLogin reports whether an error says that the server does not accept who logs in:
// by another password, or because it wants one, or none.
func refusesLogin(err error) bool {
	return hasCode(err, "WRONGPASS") || hasCode(err, "NOAUTH") ||
		answered(err) && strings.Contains(err.Error(), "without any password configured")
}
