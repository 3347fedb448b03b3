package redis

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
)

// credentials are those of an open store. If the password of a server is replaced while runs are in
// flight, the store of the old configuration must settle them, but the server refuses its password. It
// then uses the credentials of the newest store of the same server. A store whose credentials were
// never accepted does not: they are wrong, and the store of another handler must not hide that.
type credentials struct {
	server             string // identifies the server and what the store keeps there
	username, password string
	accepted, refused  atomic.Bool
}

// newestCredentials has, by server, the credentials of the store that was opened last.
var newestCredentials sync.Map

func registerCredentials(o Options) *credentials {
	c := &credentials{
		server:   fmt.Sprintf("%q %q %d %q %t %t", o.Addresses, o.Sentinel, o.DB, o.Prefix, o.Cluster, o.TLS != nil),
		username: o.Username, password: o.Password,
	}
	newestCredentials.Store(c.server, c)
	return c
}

func (c *credentials) unregister() { newestCredentials.CompareAndDelete(c.server, c) }

// accept notes that the server has accepted the credentials.
func (c *credentials) accept() {
	if !c.accepted.Load() {
		c.accepted.Store(true)
	}
}

// newest returns the credentials for a new connection. Redis calls the user of a password without a name
// default.
func (c *credentials) newest() (username, password string) {
	if newest, ok := newestCredentials.Load(c.server); ok && c.accepted.Load() && c.refused.Load() {
		c = newest.(*credentials)
	}
	return cmp.Or(c.username, "default"), c.password
}
