package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// prober asks the server of each new connection for its version, its role and whether it may evict
// records: after a failover, an address may lead to another server than before. If the server cannot be
// used, prober refuses the connection before any command of the store is sent.
type prober struct {
	log *zap.Logger
	// clustered reports whether the servers are a cluster, whose slots say which nodes are masters.
	clustered bool
	dialer    *dialer
	accepted  sync.Map // run IDs of servers
	refused   sync.Map // run IDs of replicas
	connected atomic.Bool
}

func (p *prober) probe(ctx context.Context, conn *goredis.Conn) error {
	pipeline := conn.Pipeline()
	server, memory, replication := pipeline.Info(ctx, "server"), pipeline.Info(ctx, "memory"), pipeline.Info(ctx, "replication")
	if _, err := pipeline.Exec(ctx); err != nil && !answered(err) {
		return initError(err)
	}
	if infoField(server.Val(), "redis_mode") == "sentinel" {
		return nil
	}
	if err := checkVersion(server.Val()); err != nil {
		return initError(err)
	}
	runID, address := infoField(server.Val(), "run_id"), zap.String("address", p.addressOf(conn))
	if !p.clustered && infoField(replication.Val(), "role") == "slave" {
		if _, known := p.refused.LoadOrStore(runID, true); !known {
			p.log.Error("this redis is a replica: requests with a key are refused until it becomes a master; set the address of the master, or use sentinel", address)
		}
		return initError(errReplica)
	}
	if _, known := p.accepted.LoadOrStore(runID, true); known || runID == "" {
		return nil
	}
	if p.connected.Swap(true) && !p.clustered {
		p.log.Info("connected to another redis server than before, after a failover or because the name has several addresses", address)
	}
	if policy := evictionPolicy(memory.Val()); policy != "" {
		p.log.Warn("this redis may evict records, and an evicted key runs again; set maxmemory-policy noeviction",
			address, zap.String("maxmemory_policy", policy))
	}
	return nil
}

// addressOf returns the address of a connection's server.
func (p *prober) addressOf(conn *goredis.Conn) string {
	address, _, _ := strings.Cut(strings.TrimPrefix(conn.String(), "Redis<"), " ")
	return p.dialer.addressOf(address)
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

// minVersion is the first version of Redis in which SET takes both NX and GET.
const minVersion = 7

// checkVersion returns an error if the server section of INFO has a version that is too old. Without a
// version there is no error.
func checkVersion(info string) error {
	if infoField(info, "valkey_version") != "" || infoField(info, "dragonfly_version") != "" {
		return nil // these report an old version of Redis for compatibility
	}
	version := infoField(info, "redis_version")
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < minVersion {
		return fmt.Errorf("the server is Redis %s; caddy-dedup needs Redis %d.0 or newer, or Valkey", version, minVersion)
	}
	return nil
}

// evictionPolicy returns, from the memory section of INFO, the policy by which the server evicts keys;
// "" if it evicts none, or that is not known.
func evictionPolicy(info string) string {
	limit, policy := infoField(info, "maxmemory"), infoField(info, "maxmemory_policy")
	if limit == "" || limit == "0" || policy == "noeviction" {
		return ""
	}
	return policy
}

// infoField returns the value of a field in a reply to INFO, "" if there is none.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if field, value, _ := strings.Cut(strings.TrimSpace(line), ":"); field == name {
			return value
		}
	}
	return ""
}
