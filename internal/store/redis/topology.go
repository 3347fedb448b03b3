package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	goredis "github.com/redis/go-redis/v9"
)

// masters returns a client for each server that has records, in the order of their
// addresses.
func masters(ctx context.Context, c client) ([]*goredis.Client, error) {
	if only, ok := c.(*goredis.Client); ok {
		return []*goredis.Client{only}, nil
	}
	cluster, ok := c.(*goredis.ClusterClient)
	if !ok {
		return nil, fmt.Errorf("a client of the type %T", c)
	}
	var mu sync.Mutex
	var all []*goredis.Client
	err := cluster.ForEachMaster(ctx, func(_ context.Context, master *goredis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, master)
		return nil
	})
	if err == nil && len(all) == 0 {
		err = errors.New("no master has any slots")
	}
	slices.SortFunc(all, func(a, b *goredis.Client) int { return cmp.Compare(a.Options().Addr, b.Options().Addr) })
	return all, err
}
