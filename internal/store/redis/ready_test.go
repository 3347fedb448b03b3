package redis

import (
	"errors"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// TestReplicaIsNotReady asks one that operators can read from. As soon as it is a master it
// is ready, and the former master is not, though nobody has made a claim in between, and no
// connection was closed.
func TestReplicaIsNotReady(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	at := map[*redistest.Server]*Store{}
	for _, server := range []*redistest.Server{master, replica} {
		at[server] = closeAtEnd(t, openAt(t, server.Addr))
		if _, _, err := at[server].Lookup(ctx, keyOf("a")); err != nil {
			t.Errorf("look up at %s: %v", server.Addr, err)
		}
	}
	if err := at[master].Ready(ctx); err != nil {
		t.Errorf("a master is not ready: %v", err)
	}
	for range 3 {
		if err := at[replica].Ready(ctx); !errors.Is(err, errReplica) {
			t.Errorf("ready at a replica: %v; want %v", err, errReplica)
		}
	}
	replica.Do("REPLICAOF", "NO", "ONE")
	if err := at[replica].Ready(ctx); err != nil {
		t.Errorf("one that is a master now is not ready: %v", err)
	}
	master.Do("REPLICAOF", "127.0.0.1", replica.Port())
	for range 3 {
		if err := at[master].Ready(ctx); !errors.Is(err, errReplica) {
			t.Errorf("ready at one that is a replica now: %v; want %v", err, errReplica)
		}
	}
}
