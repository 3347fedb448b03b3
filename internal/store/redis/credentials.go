package redis

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// credentials are those of an open store. The password of a server can be replaced while runs
// are in flight: the store of the old configuration has to settle them, and the server refuses
// its password. It then uses the credentials of the store that was opened last at the same
// place. A store whose credentials were never accepted does not: they are wrong, and another
// handler's store must not hide that.
type credentials struct {
	place, username, password string
	accepted, refused         atomic.Bool
}

// newestCredentials are those of the stores that were opened last, by their places.
var newestCredentials sync.Map

func enterCredentials(o Options) *credentials {
	c := &credentials{
		place:    fmt.Sprintf("%q %q %d %q %t %t", o.Addresses, o.Sentinel, o.DB, o.Prefix, o.Cluster, o.TLS != nil),
		username: o.Username, password: o.Password,
	}
	newestCredentials.Store(c.place, c)
	return c
}

func (c *credentials) leave() { newestCredentials.CompareAndDelete(c.place, c) }

// accept notes that the server has executed a claim.
func (c *credentials) accept() {
	if !c.accepted.Load() {
		c.accepted.Store(true)
	}
}

// provide returns the credentials for a new connection.
func (c *credentials) provide(context.Context) (username, password string, err error) {
	if newest, ok := newestCredentials.Load(c.place); ok && c.accepted.Load() && c.refused.Load() {
		c = newest.(*credentials)
	}
	return c.username, c.password, nil
}
