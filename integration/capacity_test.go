package integration

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

var capacityKeys = flag.Int("capacity.keys", 10_000, "with how many keys TestBytesOfAKey measures; docs/capacity.md has what it says of 100,000")

// fill sends so many requests, each with a key of its own, whose answers have a body of
// this size.
func fill(t *testing.T, p *caddy, from, to, clients int) {
	t.Helper()
	client := newLoadClient()
	defer client.CloseIdleConnections()
	var group sync.WaitGroup
	failed := make(chan error, clients)
	for c := range clients {
		group.Go(func() {
			for i := from + c; i < to; i += clients {
				got, err := try(client, p.newPost("/orders", fmt.Sprintf("%08x-9c57-4c0e-8e1b-%012x", i, i), `{"amount": 10}`))
				if err == nil && (got.Status != 201 || got.replayed()) {
					err = fmt.Errorf("request %d: %d %q", i, got.Status, got.Body)
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
}

var (
	usedMemory = regexp.MustCompile(`used_memory:(\d+)`)
)

func number(t *testing.T, pattern *regexp.Regexp, text string) float64 {
	t.Helper()
	found := pattern.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no %s in %s", pattern, text)
	}
	n, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// bytesOfAKey is what a store takes for one more key whose response has a body of so many bytes.
func bytesOfAKey(t *testing.T, store string, body int) float64 {
	t.Helper()
	up := startUpstream(t, nil)
	up.answer = func(w http.ResponseWriter, _ *http.Request, _ run) {
		up.mu.Lock()
		up.seen = nil
		up.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		random := make([]byte, body)
		_, _ = rand.Read(random)
		_, _ = w.Write(random)
	}
	c := conf{store: "store " + store, dedup: "local_copies off\nlimits {\nmemory_store 4GiB\n}"}
	var server *redistest.Server
	if store == "redis" {
		server = redistest.Start(t)
		c.store = storeAt(server.Addr)
	}
	c.site = lines("dedup", proxyTo(up))
	p := start(t, c)
	used := func() float64 {
		switch store {
		case "redis":
			return number(t, usedMemory, redisClient(t, server).Info(context.Background(), "memory").Val())
		case "file":
			var sum int64
			_ = filepath.WalkDir(filepath.Join(p.conf.dir, "data"), func(_ string, entry fs.DirEntry, err error) error {
				if err == nil && entry.Type().IsRegular() {
					if info, err := entry.Info(); err == nil {
						sum += info.Size()
					}
				}
				return nil
			})
			return float64(sum)
		default:
			return float64(p.liveMemory(t))
		}
	}
	half := *capacityKeys / 2
	fill(t, p, 0, half, 32)
	first := used()
	fill(t, p, half, 2*half, 32)
	second := used()
	fmt.Printf("%s, %d bytes: %.0f, then %.0f; all %.0f, each %.0f\n", store, body, first, second, second/float64(2*half), (second-first)/float64(half))
	return (second - first) / float64(half)
}

func TestBytesOfAKey(t *testing.T) {
	for _, store := range []string{"memory", "redis", "file"} {
		for _, body := range []int{512, 0, 2048, 16384} {
			t.Logf("%s %d: %.0f", store, body, bytesOfAKey(t, store, body))
		}
	}
}
