package integration

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/integration/history"
)

// witness is the one upstream of a load. It writes down all that it executes.
type witness struct {
	addr string
	seed uint64
	now  func() time.Duration

	mu    sync.Mutex
	runs  []history.Run
	count map[string]int
}

func startWitness(t *testing.T, seed uint64, now func() time.Duration) *witness {
	t.Helper()
	w := &witness{seed: seed, now: now, count: map[string]int{}}
	w.addr = serve(t, "127.0.0.1:0", w)
	return w
}

// plan is how a run goes. It depends on nothing but the seed, the key and the
// number of the key's run.
type plan struct {
	takes  time.Duration
	ending int
	large  bool
}

// The endings of runs.
const (
	endsCreated = iota
	endsFailed
	endsSilent
	endsCut
)

func (w *witness) plan(key string, n int) plan {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s %d", key, n)
	chance := rand.New(rand.NewPCG(w.seed, hash.Sum64()))
	var p plan
	switch d := chance.IntN(100); {
	case d < 70:
		p.takes = time.Duration(chance.IntN(5)) * time.Millisecond
	case d < 97:
		p.takes = time.Duration(5+chance.IntN(200)) * time.Millisecond
	default: // longer than a lease, which has to be renewed
		p.takes = loadLease*3/2 + time.Duration(chance.IntN(1000))*time.Millisecond
	}
	switch e := chance.IntN(100); {
	case e < 72:
		p.ending = endsCreated
	case e < 86:
		p.ending = endsFailed
	case e < 93:
		p.ending = endsSilent
	default:
		p.ending = endsCut
	}
	p.large = chance.IntN(12) == 0
	return p
}

func (w *witness) ServeHTTP(answer http.ResponseWriter, r *http.Request) {
	run := history.Run{
		Start:       w.now(),
		ExecutionID: r.Header.Get("Dedup-Execution-Id"),
		ParentID:    r.Header.Get("Dedup-Parent-Id"),
		RequestID:   r.Header.Get(requestHeader),
		Key:         r.Header.Get("Idempotency-Key"),
	}
	run.Attempt, _ = strconv.Atoi(cmp.Or(r.Header.Get("Dedup-Attempt"), "1")) // 0 is an attempt that no run has
	_, _ = io.Copy(io.Discard, r.Body)                                        // the proxy may be killed meanwhile; the run goes on
	w.mu.Lock()
	w.count[run.Key]++
	n := w.count[run.Key]
	w.mu.Unlock()

	p := w.plan(run.Key, n)
	time.Sleep(p.takes) // the work of the run
	text := fmt.Sprintf("run %d of %s, execution %s", n, run.Key, run.ExecutionID)
	if p.large {
		text += strings.Repeat(".", 10<<10)
	}
	switch p.ending {
	case endsCreated:
		run.Status, run.Answer = http.StatusCreated, digest(text)
	case endsFailed:
		run.Status, run.Answer = http.StatusInternalServerError, digest(text)
	default:
		run.Lost = true
	}
	run.End = w.now()
	w.mu.Lock()
	w.runs = append(w.runs, run)
	w.mu.Unlock()
	switch p.ending {
	case endsSilent:
		panic(http.ErrAbortHandler)
	case endsCut:
		answer.Header().Set("Content-Length", strconv.Itoa(len(text)+1))
		fmt.Fprint(answer, text)
		panic(http.ErrAbortHandler)
	}
	answer.WriteHeader(run.Status)
	fmt.Fprint(answer, text)
}

// written returns what was executed until now.
func (w *witness) written() []history.Run {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[:len(w.runs):len(w.runs)]
}

// digest stands for an answer's text in a history: the text, or what tells a long
// one from all others.
func digest(text string) string {
	if len(text) <= 200 {
		return text
	}
	return fmt.Sprintf("%d bytes, %x", len(text), sha256.Sum256([]byte(text)))
}
