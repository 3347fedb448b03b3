package integration

import (
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

var capacityKeys = flag.Int("capacity.keys", 0, "with how many keys TestCapacityOfAKey measures; the figures of docs/capacity.md are those of 100,000")

// capacityOff is by how much a figure of the page may differ from what is measured.
const capacityOff = 0.25

// pageTable returns the rows of the table under the headings given, by their first cell.
func pageTable(t *testing.T, page, headings string) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "\n"+headings+"\n|")
	if !found {
		t.Fatalf("%s has no table with the headings %s", page, headings)
	}
	var rows [][]string
	for line := range strings.Lines(table[strings.Index(table, "\n")+1:]) {
		cells, isRow := strings.CutPrefix(strings.TrimSpace(line), "|")
		if !isRow {
			break
		}
		row := strings.Split(strings.TrimSuffix(cells, "|"), "|")
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		rows = append(rows, row)
	}
	return rows
}

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

// perKey are the figures of the page for a store: bytes of a key by those of its
// response's body, and the formula for others.
type perKey struct {
	measured      map[int]float64
	fixed, factor float64
}

func (p perKey) bytes(body float64) float64 { return p.fixed + p.factor*body }

func figuresOfThePage(t *testing.T) map[string]perKey {
	t.Helper()
	stores := make(map[string]perKey)
	for _, row := range pageTable(t, "capacity.md", "| store | no body | 512 bytes | 2 KiB | 16 KiB | a key without its body | for each byte of a body |") {
		p := perKey{measured: make(map[int]float64), fixed: figureIn(t, row[5]), factor: figureIn(t, row[6])}
		for i, body := range []int{0, 512, 2 << 10, 16 << 10} {
			p.measured[body] = figureIn(t, row[1+i])
		}
		stores[row[0]] = p
	}
	if len(stores) != 3 {
		t.Fatalf("the page has the figures of %d stores, want 3", len(stores))
	}
	return stores
}

// The page's formula gives what was measured.
func TestCapacityFormula(t *testing.T) {
	t.Parallel()
	for store, figures := range figuresOfThePage(t) {
		for body, measured := range figures.measured {
			if by := figures.bytes(float64(body)); math.Abs(by-measured) > capacityOff*measured {
				t.Errorf("%s, %d bytes: the formula gives %.0f, and %.0f were measured", store, body, by, measured)
			}
		}
	}
}

// What the page says of speed is what the page of performance has measured.
func TestCapacityQuotesWhatWasMeasured(t *testing.T) {
	t.Parallel()
	measured := make(map[string]float64)
	for _, row := range pageTable(t, "performance.md", "| case | of plain | goal | by CPU | of `respond` | requests/s | p50 ms | p99 ms | CPU of the proxy, µs | of all processes, µs |") {
		measured[row[0]] = figureIn(t, row[5])
	}
	text, err := os.ReadFile("../docs/capacity.md")
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile(`took ([\d,]+) \(file\) to ([\d,]+) \(memory\) first deliveries a second, and about ([\d,]+) duplicates`).FindStringSubmatch(string(text))
	if said == nil {
		t.Fatal("the page does not say how many deliveries a process takes")
	}
	for i, name := range []string{"first delivery, file", "first delivery, memory", "duplicate, Redis, local copy"} {
		if says, was := figureIn(t, said[1+i]), measured[name]; math.Abs(says-was) > 0.05*was {
			t.Errorf("%s: the page says %.0f, and %.0f were measured", name, says, was)
		}
	}
}

// Each row of the page's table is what its formulas give, to two digits.
func TestCapacityTable(t *testing.T) {
	t.Parallel()
	assumed := make(map[string]float64)
	for _, row := range pageTable(t, "capacity.md", "| what is assumed | |") {
		assumed[row[0]] = figureIn(t, row[1])
	}
	of := func(name string) float64 {
		n, ok := assumed[name]
		if !ok {
			t.Fatalf("the page assumes nothing of %q", name)
		}
		return n
	}
	stores := figuresOfThePage(t)
	rows := pageTable(t, "capacity.md", "| deliveries a day | days they are kept | bytes of a response | requests/s at the peak | keys | file, GB | Redis, GB | masters |")
	most := 0.0
	for _, row := range rows {
		var cells []float64
		for _, cell := range row {
			cells = append(cells, figureIn(t, cell))
		}
		day, days, body := cells[0], cells[1], cells[2]
		most = max(most, day)
		peak, keys := day/86400*of("requests at the peak of a day, against its average"), day*days
		gigabytes := func(store string) float64 { return keys * stores[store].bytes(body) / 1e9 }
		masters := max(
			math.Ceil(gigabytes("Redis")/of("memory for keys of one Redis server, GB")),
			math.Ceil(peak*of("CPU of Redis for one first delivery, µs")/1e6/(of("of one CPU that Redis may use, %")/100)))
		for i, want := range []float64{peak, keys, gigabytes("file"), gigabytes("Redis"), masters} {
			if got := cells[3+i]; math.Abs(got-want) > 0.05*want && math.Abs(got-want) > 0.005 {
				t.Errorf("%s a day, %s days, %s bytes: the page has %s, and its formula gives %.4g", row[0], row[1], row[2], row[3+i], want)
			}
		}
	}
	if most != 1e9 {
		t.Errorf("the table goes up to %.0f deliveries a day, want a billion", most)
	}
}

// The figures of the page are what one more key takes in a store, through the proxy. The
// bodies cannot be compressed.
func TestCapacityOfAKey(t *testing.T) {
	t.Parallel()
	stores := figuresOfThePage(t)
	for _, c := range []struct {
		store  string
		keys   int
		bodies []int
	}{
		{"memory", 2000, []int{512, 2 << 10}},
		{"Redis", 2000, []int{512, 2 << 10}},
		{"file", 20_000, []int{512}}, // fewer keys lie mostly in its log, and not in its tables
	} {
		if *capacityKeys != 0 {
			c.keys, c.bodies = *capacityKeys, []int{0, 512, 2 << 10, 16 << 10}
		}
		for _, body := range c.bodies {
			t.Run(fmt.Sprint(c.store, " ", body), func(t *testing.T) {
				t.Parallel()
				said, measured := stores[c.store].measured[body], bytesOfAKey(t, c.store, c.keys, body)
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
	client := newLoadClient()
	client.Transport.(*http.Transport).MaxIdleConnsPerHost = 32
	defer client.CloseIdleConnections()
	var clients sync.WaitGroup
	failed := make(chan error, 32)
	for first := range 32 {
		clients.Go(func() {
			for i := from + first; i < to; i += 32 {
				got, err := try(client, p.newPost("/orders", fmt.Sprintf("%08x-9c57-4c0e-8e1b-%012x", i, i), `{"amount": 10}`))
				if err == nil && (got.Status != http.StatusCreated || got.replayed()) {
					err = fmt.Errorf("key %d: %d %q", i, got.Status, got.Body)
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	clients.Wait()
	close(failed)
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}
