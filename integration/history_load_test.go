package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/integration/history"
)

const (
	// requestHeader names a request to the upstream.
	requestHeader = "X-Load-Request"
	// askers is how many requests each process has at a time. Each has its own, so
	// that one that stands still does not stop the load of the others.
	askers = 10
	// askedAtMost bounds the requests of one key, before the last look at it.
	askedAtMost = 14
	// loadPatience is how long a client waits for an answer.
	loadPatience = 10 * time.Second
)

// load is clients that ask several processes for keys of their common store, and
// write down all that they get.
type load struct {
	seed  uint64
	addrs []string
	now   func() time.Duration

	mu       sync.Mutex
	sent     int
	keys     []*loadKey
	requests []history.Request
	freed    []history.Freed
}

type loadKey struct {
	name  string
	terms loadTerms
	asked int
	// hash is what operators call the key; empty before its first answer.
	hash string
	// refused says that the key's latest answer was that it is held.
	refused bool
}

// run asks until the context ends.
func (l *load) run(ctx context.Context) {
	var all sync.WaitGroup
	for proxy := range l.addrs {
		for n := range askers {
			all.Go(func() {
				client := newLoadClient()
				defer client.CloseIdleConnections()
				chance := rand.New(rand.NewPCG(l.seed, uint64(100*proxy+n)))
				for ctx.Err() == nil {
					k, r := l.next(proxy, chance)
					l.ask(client, k, r, chance.IntN(25) == 0, chance)
					time.Sleep(time.Duration(chance.IntN(30)) * time.Millisecond) // the pace of the load
				}
			})
		}
	}
	all.Wait()
}

// newLoadClient returns a client that never sends a request twice by itself.
func newLoadClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// next makes a request: for a new key, or for one of the latest.
func (l *load) next(proxy int, chance *rand.Rand) (*loadKey, history.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var k *loadKey
	back := int(chance.ExpFloat64() * 6)
	if chance.IntN(4) == 0 { // one whose run may have ended, or lost its claim, meanwhile
		back = int(chance.ExpFloat64() * 200)
	}
	if back < len(l.keys) && chance.IntN(100) < 68 {
		k = l.keys[len(l.keys)-1-back]
	}
	if k == nil || k.asked >= askedAtMost {
		k = &loadKey{name: fmt.Sprintf("key-%d", len(l.keys)), terms: allTerms[chance.IntN(len(allTerms))]}
		l.keys = append(l.keys, k)
	}
	r := l.requestLocked(k, proxy)
	r.Force = chance.IntN(16) == 0
	if chance.IntN(40) == 0 {
		r.Body = "another body"
	}
	return k, r
}

func (l *load) requestLocked(k *loadKey, proxy int) history.Request {
	l.sent++
	k.asked++
	return history.Request{ID: strconv.Itoa(l.sent), Key: k.name, Hold: k.terms == underHold, MaxAttempts: k.terms.maxAttempts(),
		Proxy: proxy, Body: "body"}
}

// ask sends a request and writes down what became of it. A client that hangs up
// does so soon.
func (l *load) ask(client *http.Client, k *loadKey, r history.Request, hangsUp bool, chance *rand.Rand) history.Request {
	patience := loadPatience
	if hangsUp {
		patience = time.Duration(chance.IntN(60)) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.Start = l.now()
	hash, err := send(ctx, client, "http://"+l.addrs[r.Proxy]+"/"+string(k.terms), &r)
	r.End = l.now()
	if err != nil {
		r.Failure, r.Status, r.Code, r.ExecutionID, r.Replayed, r.Answer = err.Error(), 0, "", "", false, ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, r)
	if k.hash == "" {
		k.hash = hash
	}
	k.refused = r.Code == "outcome_unknown" || r.Code == "attempts_exhausted"
	return r
}

// send fills in the answer, and returns what operators call the key.
func send(ctx context.Context, client *http.Client, url string, r *history.Request) (hash string, err error) {
	request, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(r.Body))
	if err != nil {
		return "", err
	}
	request.Host = "dedup.test" // the same for all processes
	request.GetBody = nil       // else the client would send it again by itself
	request.Header.Set("Idempotency-Key", r.Key)
	request.Header.Set(requestHeader, r.ID)
	if r.Force {
		request.Header.Set("X-Force", "true")
	}
	got, err := try(client, request)
	if err != nil {
		return "", err
	}
	r.Status, r.ExecutionID, r.Replayed = got.Status, got.executionID(), got.replayed()
	if got.Header.Get("Content-Type") != "application/problem+json" {
		r.Answer = digest(got.Body)
		return got.Header.Get("X-Key"), nil
	}
	var p problem
	if err := json.Unmarshal([]byte(got.Body), &p); err != nil {
		return "", errors.New("a problem that is no JSON: " + got.Body)
	}
	r.Code, r.ExecutionID = p.Code, p.ExecutionID
	return got.Header.Get("X-Key"), nil
}

// lookAtAll asks each key once more, when all faults are over, until nothing is
// in its way any more. A key whose patience ends keeps its last answer.
func (l *load) lookAtAll(faults []history.Fault, runs func() []history.Run) {
	keys := make(chan *loadKey)
	var all sync.WaitGroup
	for n := range askers * len(l.addrs) {
		all.Go(func() {
			client := newLoadClient()
			defer client.CloseIdleConnections()
			for k := range keys {
				for deadline := time.Now().Add(patience); ; {
					r := l.request(k, n%len(l.addrs))
					r.Final = time.Now().After(deadline)
					got := l.ask(client, k, r, false, nil)
					if r.Final || !l.soFar(faults, runs()).InTheWay(&got) {
						break
					}
				}
			}
		})
	}
	for _, k := range l.keys {
		keys <- k
	}
	close(keys)
	all.Wait()
}

func (l *load) request(k *loadKey, proxy int) history.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requestLocked(k, proxy)
}

// soFar returns the history until now.
func (l *load) soFar(faults []history.Fault, runs []history.Run) *history.History {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &history.History{Seed: l.seed, Lease: loadLease, Jitter: loadJitter, Shared: loadShared, Retry: loadRetry,
		Requests: l.requests, Runs: runs, Freed: l.freed, Faults: faults}
}

// kinds counts the answers by what they are.
func kinds(h *history.History) map[string]int {
	count, replayed := map[string]int{}, map[string]time.Duration{}
	for _, r := range h.Requests {
		if r.Replayed {
			replayed[r.ExecutionID] = max(replayed[r.ExecutionID], r.Start)
		}
		switch {
		case r.Failure != "":
			count["no answer"]++
		case r.Code != "":
			count[r.Code]++
		case r.Replayed:
			count["replayed"]++
		default:
			count["run"]++
		}
	}
	count["freed"] = len(h.Freed)
	for _, run := range h.Runs {
		if run.ParentID != "" {
			count["forced"]++
		}
		if run.Attempt > 1 && run.ParentID == "" {
			count["run again"]++
		}
		if run.Lost {
			count["lost"]++
		}
		if run.Status >= 500 && replayed[run.ExecutionID] > run.End+loadRetry { // not to one who waited
			count["failure kept"]++
		}
	}
	return count
}

// free has an operator release a few keys: some that are held, and one that may be
// anything.
func (l *load) free(t *testing.T, p *caddy, chance *rand.Rand) {
	t.Helper()
	l.mu.Lock()
	var chosen []*loadKey
	for back := range min(len(l.keys), 300) {
		k := l.keys[len(l.keys)-1-back]
		if k.hash != "" && (k.refused && len(chosen) < 3 || chance.IntN(300) == 0) {
			chosen = append(chosen, k)
		}
	}
	l.mu.Unlock()
	for _, k := range chosen {
		f := history.Freed{Key: k.name, Start: l.now()}
		status, answer := p.askAdmin(t, "POST", "/dedup/keys/"+k.hash+"/release", "", "")
		f.End = l.now()
		switch status {
		case http.StatusNotFound, http.StatusConflict:
			continue // nothing was done
		case http.StatusNoContent:
		case http.StatusServiceUnavailable:
			f.Unsure = true
		default:
			t.Errorf("the release of %s was answered %d: %s", k.name, status, answer)
		}
		l.mu.Lock()
		l.freed = append(l.freed, f)
		l.mu.Unlock()
	}
}

// missingKinds returns which of the kinds a history has not.
func missingKinds(h *history.History, wanted []string) []string {
	count := kinds(h)
	return slices.DeleteFunc(slices.Clone(wanted), func(kind string) bool { return count[kind] > 0 })
}
