package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// notification is the body of an attempt to deliver one.
func notification(id, channel string) string {
	return fmt.Sprintf(`{"uid": %q, "channel": %q, "text": "rendered anew, %d"}`, id, channel, rand.Int())
}

// deliveries plays the delivery service. It keeps a list of its answers to each
// notification, in the order in which it began them.
type deliveries struct {
	mu     sync.Mutex
	seen   map[string][]int
	answer func(id string, n int) int // a status, or 0 for no answer
}

func (d *deliveries) deliver(w http.ResponseWriter, r *http.Request, this run) {
	var n struct {
		ID      string `json:"uid"`
		Channel string `json:"channel"`
	}
	if err := json.Unmarshal([]byte(this.Body), &n); err != nil {
		panic(err) // the tests write these bodies
	}
	id := n.ID + " by " + n.Channel
	d.mu.Lock()
	number := len(d.seen[id]) + 1
	status := d.answer(id, number)
	d.seen[id] = append(d.seen[id], status)
	d.mu.Unlock()
	if status == 0 {
		noAnswer(w, r, this)
		return
	}
	w.WriteHeader(status)
	fmt.Fprintf(w, "attempt %d at %s", number, id)
}

func (d *deliveries) of(id string) []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seen[id]
}

func startDeliveries(t *testing.T, answer func(id string, n int) int) (*upstream, *deliveries) {
	t.Helper()
	d := &deliveries{seen: make(map[string][]int), answer: answer}
	return startUpstream(t, d.deliver), d
}

func TestRecipeNotificationDeliveryIsShared(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	g := newGate(t)
	up := startUpstream(t, g.before(answersStatus(202)))
	r := readRecipe(t, "notification-delivery.md").before(t, up).on(t, server.Addr)
	a, b := r.start(t), r.start(t)

	var all []*pending
	for range 10 { // each worker has a body and credentials of its own
		worker := header("Authorization", fmt.Sprint(rand.Int()))
		all = append(all, a.postLater("/notifications", "", notification("n1", "mail"), worker, host("a.test")),
			b.postLater("/notifications", "", notification("n1", "mail"), worker, host("b.test")))
	}
	up.awaitRuns(t, "", 1)
	a.awaitWaiting(t, 9, all...)
	b.awaitWaiting(t, 9, all...)
	g.open()
	got := replies(t, all)
	allAlike(t, got)
	wantAnswer(t, got[0], 202, "run 1 of ")
	up.wantRuns(t, "", 1)

	wantReplay(t, b.post(t, "/notifications", "", notification("n1", "mail")), got[0])
	wantFresh(t, b.post(t, "/notifications", "", notification("n1", "phone")), 202, "run 2 of ")
	for _, body := range []string{`{"uid": "n1"}`, `{"channel": "mail"}`, `{"uid": null, "channel": "mail"}`, "n1"} {
		wantProblem(t, b.post(t, "/notifications", "", body), 400, "idempotency_key_missing")
	}
	up.wantRuns(t, "", 2)
}

// Many workers over two replicas try notifications that fail in every way, until
// no try can be the service's any more.
func TestRecipeNotificationDeliveryIsTriedFiveTimes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	// Notifications "ok" succeed at the third try, "no" never do, "lost" get no
	// answer, and "any" end as chance has it.
	up, service := startDeliveries(t, func(id string, n int) int {
		switch {
		case strings.HasPrefix(id, "ok") && n == 3:
			return 202
		case strings.HasPrefix(id, "lost"):
			return 0
		case strings.HasPrefix(id, "any"):
			return []int{0, 500, 503, 302, 400, 404, 410, 422, 429, 202}[rand.IntN(10)]
		default:
			return 503
		}
	})
	r := readRecipe(t, "notification-delivery.md").before(t, up).on(t, server.Addr)
	replicas := []*caddy{r.start(t), r.start(t)}
	for _, p := range replicas { // what stays for good is there now
		p.post(t, "/notifications", "", notification("ok warm", "mail"))
	}
	before := make([]int, len(replicas))
	for i, p := range replicas {
		before[i] = p.goroutines(t)
	}

	// A replica that has not yet heard of a run's end gives its answer once more,
	// so that a worker may need two tries for each run.
	const workers, tries = 6, 16
	ids := []string{"ok 1", "ok 2", "no 1", "no 2", "lost 1", "any 1", "any 2", "any 3"}
	var group sync.WaitGroup
	last := make(chan reply, workers*len(replicas)*len(ids))
	for _, id := range ids {
		for w := range workers * len(replicas) {
			group.Go(func() {
				var got reply
				for n := range tries {
					var err error
					got, err = try(oneShot, replicas[(w+n)%len(replicas)].newPost("/notifications", "", notification(id, "mail")))
					if err != nil {
						t.Errorf("%s: %v", id, err)
						return
					}
				}
				got.Header.Set("X-Notification", id)
				last <- got
			})
		}
	}
	group.Wait()
	close(last)

	final := make(map[string][]reply)
	for got := range last {
		id := got.Header.Get("X-Notification")
		final[id] = append(final[id], got)
	}
	for _, id := range ids {
		answers := service.of(id + " by mail")
		end := answers[len(answers)-1]
		for n, status := range answers[:len(answers)-1] {
			if status == 202 {
				t.Errorf("%s was delivered again after answer %d: %v", id, n+1, answers)
			}
		}
		kept := end == 202
		if want := 5; len(answers) > want || !kept && len(answers) != want {
			t.Errorf("%s: the service saw %d tries, %v; want %d", id, len(answers), answers, want)
		}
		for _, got := range final[id] {
			if end == 0 {
				wantProblem(t, got, 409, "attempts_exhausted")
				continue
			}
			wantAnswer(t, got, end, fmt.Sprintf("attempt %d at %s by mail", len(answers), id))
			if !got.replayed() {
				t.Errorf("%s: the last answer is not marked as replayed", id)
			}
		}
	}
	if n := len(service.of("ok 1 by mail")); n != 3 {
		t.Errorf("a delivery that succeeds at the third try took %d", n)
	}
	wantNothingLeft(t, server, replicas, before)
}

// wantNothingLeft fails unless the processes hold nothing any more for requests
// that are over, and Redis forgets each key by itself.
func wantNothingLeft(t *testing.T, server *redistest.Server, replicas []*caddy, before []int) {
	t.Helper()
	for i, p := range replicas {
		eventually(t, fmt.Sprintf("replica %d is back at %d goroutines", i+1, before[i]), func() bool { return p.goroutines(t) <= before[i] })
	}
	for key, life := range lives(t, redisClient(t, server)) {
		if life <= 0 {
			t.Errorf("Redis keeps %s for ever", key)
		}
	}
}

// goroutines counts those of the process that are within this module's code, but for
// the two that send commands to a Redis server: the second one begins when it is needed.
func (p *caddy) goroutines(t *testing.T) int {
	t.Helper()
	_, dump := p.askAdmin(t, "GET", "/debug/pprof/goroutine?debug=2", "", "")
	n := 0
	for stack := range strings.SplitSeq(dump, "\n\n") {
		if strings.Contains(stack, "caddy-dedup/caddy-dedup/") && !strings.Contains(stack, "redis.(*pipes).run") {
			n++
		}
	}
	if n == 0 {
		t.Fatal("the dump shows no goroutine of the module: is it stripped?")
	}
	return n
}

// Whatever stands still or dies meanwhile: no notification is tried a sixth time,
// and no two tries are the same attempt.
func TestRecipeNotificationDeliveryUnderFaults(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up, service := startDeliveries(t, func(string, int) int { return []int{0, 503, 503}[rand.IntN(3)] })
	r := readRecipe(t, "notification-delivery.md").before(t, up).on(t, server.Addr).with(t, "lease 10s", "lease 1500ms", "wait 30s", "wait 2s")
	a, b := r.start(t), r.start(t)
	ids := []string{"n1", "n2", "n3", "n4"}
	done := make(chan struct{})
	var group sync.WaitGroup
	for _, id := range ids {
		for _, p := range []*caddy{a, b, a, b} {
			group.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						_, _ = try(oneShot, p.newPost("/notifications", "", notification(id, "mail"))) // what it gets is not the point
					}
				}
			})
		}
	}
	standStill := func(stop, goOn func()) {
		stop()
		<-time.After(longEnough) // the time for which it stands still
		goOn()
	}
	for range 3 {
		standStill(server.Pause, server.Resume)
		standStill(func() { a.pause(t) }, func() { a.resume(t) })
		b.kill(t)
		b = r.startAs(t, b.conf)
	}
	// Every notification is brought to its end.
	for _, id := range ids {
		before := ""
		eventually(t, id+" has its last answer", func() bool {
			got, err := try(oneShot, b.newPost("/notifications", "", notification(id, "mail")))
			if err != nil || strings.Contains(got.Body, "attempts_exhausted") {
				return err == nil
			}
			// Who waits for a run gets its answer once; a kept one is there again.
			kept := got.replayed() && got.executionID() == before
			before = got.executionID()
			return kept
		})
	}
	close(done)
	group.Wait()
	told := make(map[string]int)
	for _, ran := range up.all() {
		var n struct {
			ID string `json:"uid"`
		}
		if err := json.Unmarshal([]byte(ran.Body), &n); err != nil {
			t.Fatal(err)
		}
		told[n.ID+" as attempt "+ran.Header.Get("Dedup-Attempt")]++
	}
	for what, times := range told {
		if times > 1 || strings.HasSuffix(what, " 6") {
			t.Errorf("%s was made %d times", what, times)
		}
	}
	for _, id := range ids {
		if tries := service.of(id + " by mail"); len(tries) > 5 {
			t.Errorf("%s was tried %d times: %v", id, len(tries), tries)
		}
	}
}

// A replica that dies in the middle of a delivery has made an attempt.
func TestRecipeNotificationDeliveryByAReplicaThatDies(t *testing.T) {
	t.Parallel()
	for name, deaths := range map[string][]int{"at the last attempt": {5}, "at the first two": {1, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			dies := func(n int) bool {
				for _, death := range deaths {
					if death == n {
						return true
					}
				}
				return false
			}
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
				if dies(n.N) {
					untilGone(w, r, n)
					return
				}
				answersStatus(500)(w, r, n)
			})
			r := readRecipe(t, "notification-delivery.md").before(t, up).on(t, server.Addr).with(t, "lease 10s", "lease 1500ms")
			a, b := r.start(t), r.start(t)
			for n := 1; n <= 5; n++ {
				if dies(n) {
					delivery := a.postLater("/notifications", "", notification("n", "mail"))
					up.awaitRuns(t, "", n)
					a.kill(t)
					<-delivery.done
					a = r.startAs(t, a.conf)
					continue
				}
				wantAnswer(t, b.post(t, "/notifications", "", notification("n", "mail")), 500, fmt.Sprintf("run %d of ", n))
				wantAttempt(t, up, "", n, fmt.Sprint(n))
			}
			for _, p := range []*caddy{a, b} {
				got := p.post(t, "/notifications", "", notification("n", "mail"))
				if dies(5) {
					wantProblem(t, got, 409, "attempts_exhausted")
				} else {
					wantReplay(t, got, reply{Status: 500, Body: "run 5 of ", Header: got.Header})
				}
			}
			up.wantRuns(t, "", 5)
		})
	}
}

// The responses of released attempts are kept for their waiters only, and a
// notification leaves one record.
func TestRecipeNotificationDeliveryLeavesOneRecord(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up, _ := startDeliveries(t, func(string, int) int { return 503 })
	p := readRecipe(t, "notification-delivery.md").before(t, up).on(t, server.Addr).with(t, "lease 10s", "lease 1500ms").start(t)
	for range 7 {
		if got := p.post(t, "/notifications", "", notification("n", "mail")); got.Status != 503 {
			t.Fatalf("got %d %q", got.Status, got.Body)
		}
	}
	client := redisClient(t, server)
	eventually(t, "one record is left", func() bool { return client.DBSize(context.Background()).Val() == 1 })
	wantLives(t, client, 1, 6*day, 7*day)
}
