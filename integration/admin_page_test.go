package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// The deliveries of the page: one that was cut off, one that was answered, one that is in
// flight, and an order, whose key is in Redis.
const (
	cutOff    = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
	cutOffToo = "7e1f4c52-8d0a-4f3b-9a6e-5b2d1c0f9e83"
	answered  = "0b989ba4-242f-11e5-81e1-c7b6966d2516"
	running   = "3f2c6a10-5f4e-11ee-8c99-0242ac120002"
	order     = "order-1001"
)

// adminPage is a stage with the configuration of the page.
type adminPage struct {
	*stage
	records *redistest.Server
	gate    *gate
}

func startAdminPage(t *testing.T) *adminPage {
	t.Helper()
	a := &adminPage{records: redistest.Start(t), gate: newGate(t)}
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		switch {
		case (n.Key == cutOff || n.Key == cutOffToo) && n.N == 1:
			noAnswer(w, r, n)
			return
		case n.Key == running:
			<-a.gate.opened
		}
		answersJSON(http.StatusCreated, `{"id": 17}`)(w, r, n)
	})
	dir, port, adminPort := shortTempDir(t), freeport.Of(t), freeport.Of(t)
	admin := fmt.Sprintf("127.0.0.1:%d", adminPort)
	var text string
	for _, b := range docBlocks(t) {
		if b.page == "admin.md" && b.language == "caddyfile" {
			text = recipe{b.page, b.text}.with(t,
				"admin localhost:2019", "admin "+admin+"\n\tdefault_bind 127.0.0.1\n\tauto_https off\n\tpersist_config off",
				"hooks.example.com {", fmt.Sprintf("http://:%d {", port),
				"localhost:6379", a.records.Addr,
			).before(t, up).text
		}
	}
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, dir, "run", "--config", file)
	p.conf.dir, p.addr = dir, fmt.Sprintf("127.0.0.1:%d", port)
	p.awaitLog(t, "serving initial configuration", func(e entry) bool { return e.text("msg") == "serving initial configuration" })
	a.stage = &stage{caddy: p, up: up, admin: admin, here: []string{
		"localhost:2019", admin, "127.0.0.1:6379", a.records.Addr, "/data", filepath.Join(dir, "data"),
	}}
	a.deliver(t, cutOff)
	a.deliver(t, answered)
	p.post(t, "/orders", order, "{}", host("hooks.example.com"))
	return a
}

func (s *stage) deliver(t *testing.T, id string) reply {
	t.Helper()
	return s.post(t, "/github", "", "{}", fromGitHub(id)...)
}

func fromGitHub(id string) []option {
	return []option{host("hooks.example.com"), header("X-GitHub-Delivery", id), header("X-GitHub-Hook-ID", "7")}
}

// startSocket is a stage with a unix socket for the admin API, as in a pod.
func startSocket(t *testing.T, c conf, up *upstream) *stage {
	t.Helper()
	p := start(t, c)
	s := &stage{caddy: p, up: up, admin: "unix/" + adminSocket(p.conf.dir)}
	s.here = []string{"/data/admin.sock", adminSocket(p.conf.dir), "/data", filepath.Join(p.conf.dir, "data"), "/run/nobody.sock", filepath.Join(p.conf.dir, "nobody.sock")}
	return s
}

func TestAdminPage(t *testing.T) {
	t.Parallel()
	whole := func(t *testing.T) *stage { return startAdminPage(t).stage }
	socket := func(t *testing.T) *stage {
		up := startUpstream(t, answers201)
		s := startSocket(t, conf{store: "store file", site: lines("dedup github", proxyTo(up))}, up)
		s.deliver(t, answered)
		return s
	}
	runs := func(t *testing.T) *stage {
		a := startAdminPage(t)
		w := a.postLater("/github", "", "{}", fromGitHub(running)...)
		a.up.awaitRuns(t, running, 1)
		t.Cleanup(func() { a.gate.open(); <-w.done })
		return a.stage
	}
	away := func(t *testing.T) *stage {
		a := startAdminPage(t)
		a.records.Kill()
		return a.stage
	}
	only := func(start func(*testing.T) *stage) situation { return situation{start: start} }
	freed := func(ids ...string) situation {
		return situation{start: whole, after: func(t *testing.T, s *stage) {
			for _, id := range ids {
				before := len(s.up.all())
				if id == order {
					s.post(t, "/orders", id, "{}", host("hooks.example.com"))
				} else {
					s.deliver(t, id)
				}
				if len(s.up.all()) != before+1 {
					t.Errorf("%s does not run, after the commands of the page", id)
				}
			}
		}}
	}
	completed := situation{start: whole, after: func(t *testing.T, s *stage) {
		before := len(s.up.all())
		got := s.deliver(t, cutOff)
		if got.Status != 201 || got.Body != `{"id": 17}` || !got.replayed() || len(s.up.all()) != before {
			t.Errorf("a completed key answers %d %s", got.Status, got.Body)
		}
	}}
	many := freed(cutOff, cutOffToo)
	many.start = func(t *testing.T) *stage {
		s := whole(t)
		s.deliver(t, cutOffToo)
		return s
	}
	var kill, stop *redistest.Server
	health := situation{
		start: func(t *testing.T) *stage {
			a := startAdminPage(t)
			stop = a.records
			return a.stage
		},
		before: map[int]func(*testing.T, *stage){3: func(*testing.T, *stage) { stop.Kill() }},
	}
	list := situation{
		start: func(t *testing.T) *stage {
			a := startAdminPage(t)
			kill = a.records
			return a.stage
		},
		before: map[int]func(*testing.T, *stage){4: func(*testing.T, *stage) { kill.Kill() }},
	}
	unreadable := situation{start: func(t *testing.T) *stage {
		a := startAdminPage(t)
		client := redisClient(t, a.records)
		for _, key := range client.Keys(t.Context(), "dedup:{*}").Val() {
			if err := client.Set(t.Context(), key, "not ours", 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		return a.stage
	}}
	testPage(t, "admin.md", map[string]situation{
		"In a pod":           only(socket),
		"Over a unix socket": only(socket),
		"keys list":          only(whole),
		"keys show":          only(whole),
		"keys release":       freed(cutOff),
		"keys complete":      completed,
		"keys forget":        freed(cutOff),
		"More than one key":  freed(cutOff, order),
		"Many keys at once":  many,
		"For programs":       freed(cutOff),
		"Exit status":        only(runs),
		"health":             health,
		"Shell completion":   only(socket),
		"List":               list,
		"Lookup":             only(whole),
		"Show":               only(whole),
		"Release":            freed(answered),
		"Complete":           completed,
		"Delete":             freed(answered),
		"Ready":              only(whole),
		"400":                only(whole),
		"404":                only(whole),
		"405":                only(whole),
		"409":                only(runs),
		"500":                unreadable,
		"503":                only(away),
	})
}

var (
	longFlag      = regexp.MustCompile(`--[a-z][a-z-]+`)
	listParameter = regexp.MustCompile(`accepted are ([a-z_, ]+)"`)
)

// The page has every flag of the commands, and every parameter of a list.
func TestAdminPageIsComplete(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/admin.md")
	if err != nil {
		t.Fatal(err)
	}
	flags := 0
	for _, name := range []string{"keys list", "keys show", "keys release", "keys complete", "keys forget", "health"} {
		help, _ := command(t, shortTempDir(t), append(strings.Fields(name), "--help")...)
		_, help, _ = strings.Cut(help, "Flags:")
		for _, flag := range longFlag.FindAllString(help, -1) {
			flags++
			if !strings.Contains(string(text), "`"+flag) {
				t.Errorf("the page does not have %s of %s", flag, name)
			}
		}
	}
	if flags < 20 {
		t.Errorf("the commands have %d flags: are they looked for where they are?", flags)
	}
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	_, said := p.askAdmin(t, "GET", "/dedup/keys?no=1", "", "")
	accepted := listParameter.FindStringSubmatch(said)
	if accepted == nil {
		t.Fatalf("it does not say what it accepts: %s", said)
	}
	for parameter := range strings.SplitSeq(accepted[1], ", ") {
		if !strings.Contains(string(text), "`"+parameter+"`") {
			t.Errorf("the page does not have the parameter %s", parameter)
		}
	}
}
