package integration

import (
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

var capacityKeys = flag.Int("capacity.keys", 0, "with how many keys TestCapacityOfAKey measures; the figures of docs/costs.md are those of 100,000")

// capacityOff is by how much a figure of the page may differ from what is measured.
const capacityOff = 0.25

var figure = regexp.MustCompile(`[0-9][0-9,]*(\.[0-9]+)?`)

// figureIn reads the number of a cell.
func figureIn(t *testing.T, cell string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(strings.ReplaceAll(figure.FindString(cell), ",", ""), 64)
	if err != nil {
		t.Fatalf("the cell %q has no number: %v", cell, err)
	}
	return n
}

// figuresOfThePage are the bytes of a key, by its store and the bytes of its response's body.
func figuresOfThePage(t *testing.T) map[string]map[int]float64 {
	t.Helper()
	stores := make(map[string]map[int]float64)
	for _, row := range pageTable(t, "| store | no body | 512 bytes | 2 KiB | 16 KiB |") {
		stores[row[0]] = make(map[int]float64)
		for i, body := range []int{0, 512, 2 << 10, 16 << 10} {
			stores[row[0]][body] = figureIn(t, row[1+i])
		}
	}
	return stores
}

// The figures of the page are what one more key takes in a store, through the proxy. The
// bodies cannot be compressed.
func TestCapacityOfAKey(t *testing.T) {
	t.Parallel()
	stores := figuresOfThePage(t)
	keys, names, bodies := 2000, []string{"memory", "Redis"}, []int{512}
	if *capacityKeys != 0 { // few keys of the file store lie mostly in its log, and not in its tables
		keys, names, bodies = *capacityKeys, append(names, "file"), []int{0, 512, 2 << 10, 16 << 10}
	}
	for _, store := range names {
		for _, body := range bodies {
			t.Run(fmt.Sprint(store, " ", body), func(t *testing.T) {
				t.Parallel()
				said, measured := stores[store][body], bytesOfAKey(t, store, keys, body)
				t.Logf("a key takes %.0f bytes, and the page says %.0f", measured, said)
				if math.Abs(measured-said) > capacityOff*said {
					t.Errorf("a key with a response of %d bytes takes %.0f bytes, and the page says %.0f", body, measured, said)
				}
			})
		}
	}
}

// bytesOfAKey is what so many keys take in a store, for each of them. The first half is
// left out where a store begins with something of its own.
func bytesOfAKey(t *testing.T, store string, keys, body int) float64 {
	t.Helper()
	up := startUpstream(t, nil)
	up.answer = func(w http.ResponseWriter, _ *http.Request, _ run) {
		up.mu.Lock()
		up.seen = nil
		up.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		random := make([]byte, body)
		_, _ = rand.Read(random) // it never fails
		_, _ = w.Write(random)
	}
	c := conf{dedup: "local_copies off\nlimits {\nmemory_store 8GiB\n}", site: lines("dedup", proxyTo(up))}
	var used func(p *caddy) int
	switch store {
	case "memory":
		c.store, used = "store memory", func(p *caddy) int { return p.liveMemory(t) }
	case "file":
		c.store, used = "store file", func(p *caddy) int { return bytesOfTables(t, filepath.Join(p.conf.dir, "data")) }
	case "Redis":
		server := redistest.Start(t)
		client := redisClient(t, server)
		c.store, used = storeAt(server.Addr), func(*caddy) int {
			return int(figureIn(t, regexp.MustCompile(`used_memory:\d+`).FindString(client.Info(t.Context(), "memory").Val())))
		}
	}
	p, first := start(t, c), keys/2
	if store == "file" {
		first = 0
	}
	fill(t, p, 0, first)
	before := used(p)
	fill(t, p, first, keys)
	return float64(used(p)-before) / float64(keys-first)
}

// bytesOfTables is what the files in a directory take, without logs: those are as large
// with many keys as with few.
func bytesOfTables(t *testing.T, dir string) (bytes int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && filepath.Ext(path) != ".log" {
			var info fs.FileInfo
			if info, err = entry.Info(); err == nil {
				bytes += int(info.Size())
			}
		}
		if errors.Is(err, fs.ErrNotExist) { // a merge has just removed it
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// fill sends a request with each of these keys.
func fill(t *testing.T, p *caddy, from, to int) {
	t.Helper()
	share(32, to-from, func(client *http.Client, n int) {
		i := from + n
		got, err := try(client, p.newPost("/orders", fmt.Sprintf("%08x-9c57-4c0e-8e1b-%012x", i, i), `{"amount": 10}`))
		if err != nil || got.Status != http.StatusCreated || got.replayed() {
			t.Errorf("key %d: %d %q, %v", i, got.Status, got.Body, err)
		}
	})
}
