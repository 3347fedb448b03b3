package caddymodule

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/redis"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// provisioned is a store of these settings, in JSON.
func provisioned(t *testing.T, settings string) (*RedisStore, error) {
	t.Helper()
	s := new(RedisStore)
	if err := json.Unmarshal([]byte(settings), s); err != nil {
		t.Fatal(err)
	}
	return s, s.Provision(caddy.Context{})
}

// claimOnce opens the store and claims a key in it.
func claimOnce(t *testing.T, s *RedisStore) error {
	t.Helper()
	store, err := s.Open(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	claimed, err := store.Claim(t.Context(), idempotency.Claim{
		Key: sha256.Sum256([]byte(t.Name())), Token: "token", Terms: idempotency.Terms{Lease: 1e9, Retention: 1e9},
	})
	if err == nil && claimed.Verdict != idempotency.Proceed {
		t.Errorf("claimed with %v", claimed.Verdict)
	}
	return err
}

// The passwords of servers and sentinels come from the environment and from
// files, and are in no text that anybody sees.
func TestRedisPasswordsFromPlaceholders(t *testing.T) {
	master := redistest.Start(t)
	sentinel := redistest.StartSentinels(t, master, 0, 1)[0]
	sentinel.Do("ACL", "SETUSER", "watcher", "on", ">s3ntinel", "allcommands", "allchannels")
	sentinel.Do("ACL", "SETUSER", "default", "off")
	master.Do("ACL", "SETUSER", "dedup", "on", ">s3cret", "allcommands", "allkeys", "allchannels")
	file := filepath.Join(t.TempDir(), "redis")
	if err := os.WriteFile(file, []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TEST_REDIS_USER", "dedup\n") // the line end is no part of it
	t.Setenv("TEST_REDIS_PASSWORD", "s3cret\r\n")
	t.Setenv("TEST_SENTINEL_PASSWORD", "s3ntinel\n")
	t.Setenv("TEST_WRONG_PASSWORD", "wr0ng")
	for _, test := range []struct{ settings, want string }{
		{`{"url": "redis://{env.TEST_REDIS_USER}:{env.TEST_REDIS_PASSWORD}@` + master.Addr + `"}`, ""},
		{`{"addresses": ["` + master.Addr + `"], "username": "{env.TEST_REDIS_USER}", "password": "{file.` + file + `}"}`, ""},
		{`{"addresses": ["` + sentinel.Addr + `"], "sentinel": "main", "sentinel_username": "watcher",
			"sentinel_password": "{env.TEST_SENTINEL_PASSWORD}", "username": "dedup", "password": "{file.` + file + `}"}`, ""},
		{`{"addresses": ["` + master.Addr + `"], "username": "dedup", "password": "{env.TEST_WRONG_PASSWORD}"}`, "username and password"},
		{`{"addresses": ["` + sentinel.Addr + `"], "sentinel": "main", "sentinel_username": "watcher",
			"sentinel_password": "{env.TEST_WRONG_PASSWORD}"}`, "sentinel_password"},
	} {
		s, err := provisioned(t, test.settings)
		if err != nil {
			t.Errorf("%s: %v", test.settings, err)
			continue
		}
		master.Do("FLUSHALL")
		if err = claimOnce(t, s); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want %q", test.settings, err, test.want)
		}
		texts := s.PoolKey() + s.Describe()
		if err != nil {
			texts += err.Error()
		}
		for _, secret := range []string{"s3cret", "s3ntinel", "wr0ng"} {
			if strings.Contains(texts, secret) {
				t.Errorf("%s: a text shows a password: %s", test.settings, texts)
			}
		}
	}
}

// Certificates that are replaced in their files reach a store that stays open,
// with its next connection.
func TestRedisCertificatesAreReplaced(t *testing.T) {
	certificates := redistest.NewCertificates(t)
	server := redistest.StartTLS(t, certificates)
	t.Setenv("TEST_REDIS_CERTIFICATES", filepath.Dir(certificates.CA))
	s, err := provisioned(t, fmt.Sprintf(`{"addresses": [%q], "timeout": "10s", "tls": {
		"ca": "{env.TEST_REDIS_CERTIFICATES}/ca.pem", "cert": %q, "key": %q}}`,
		server.Addr, certificates.Cert, certificates.Key))
	if err != nil {
		t.Fatal(err)
	}
	store, err := s.Open(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	lookup := func() error {
		_, _, err := store.Lookup(t.Context(), sha256.Sum256([]byte(t.Name())))
		return err
	}
	works := func(when string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if err = lookup(); err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v", when, err)
			}
		}
	}
	// A connection that is killed is known to be dead a moment later.
	fails := func(when, named string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			err := lookup()
			if err != nil && strings.Contains(err.Error(), named) {
				return
			}
			if err == nil || time.Now().After(deadline) {
				t.Fatalf("%s: %v; want an error that names %s", when, err, named)
			}
		}
	}
	works("with the first certificates")
	certificates.Replace(t)
	works("on the connection that is there")
	server.Do("CLIENT", "KILL", "TYPE", "normal")
	fails("with another authority than the server's", "unknown authority")
	server.Restart()
	works("with a server that has the new ones too")

	key, err := os.ReadFile(certificates.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{certificates.CA, certificates.Cert, certificates.Key} {
		if err := os.Rename(file, file+".old"); err != nil {
			t.Fatal(err)
		}
		server.Do("CLIENT", "KILL", "TYPE", "normal")
		fails("without "+file, file)
		if err := os.Rename(file+".old", file); err != nil {
			t.Fatal(err)
		}
		works("with " + file + " again")
	}
	if err := os.WriteFile(certificates.Key, key[:len(key)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := provisioned(t, fmt.Sprintf(`{"url": "redis://a", "tls": {"cert": %q, "key": %q}}`, certificates.Cert, certificates.Key)); err == nil ||
		!strings.Contains(err.Error(), certificates.Key) {
		t.Errorf("loaded with half a key: %v; want an error that names it", err)
	}
}

// A server whose certificate no known authority has signed is accepted only on request.
func TestRedisCertificateThatIsNotVerified(t *testing.T) {
	certificates := redistest.NewCertificates(t)
	server := redistest.StartTLS(t, certificates)
	for _, test := range []struct{ server, setting, want string }{
		{`"addresses": [%q]`, "", "certificate"},
		{`"addresses": [%q]`, `, "insecure_skip_verify": true`, ""},
		{`"url": "rediss://%s"`, `, "insecure_skip_verify": true`, ""}, // as platforms hand it out
	} {
		s, err := provisioned(t, fmt.Sprintf(`{`+test.server+`, "timeout": "10s", "tls": {"cert": %q, "key": %q%s}}`,
			server.Addr, certificates.Cert, certificates.Key, test.setting))
		if err != nil {
			t.Fatal(err)
		}
		if err = claimOnce(t, s); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s%s: %v; want %q", test.server, test.setting, err, test.want)
		}
	}
}

// Settings of different stores have different pool keys.
func TestRedisPoolKeys(t *testing.T) {
	seen := make(map[string]string)
	for _, settings := range []string{
		`{"addresses": ["a:1"]}`,
		`{"addresses": ["a:1"], "cluster": true}`,
		`{"addresses": ["a:1"], "sentinel": "main"}`,
		`{"addresses": ["a:1"], "sentinel": "other"}`,
		`{"addresses": ["a:1"], "sentinel": "main", "sentinel_username": "u", "sentinel_password": "u"}`,
		`{"addresses": ["a:1"], "sentinel": "main", "sentinel_password": "u"}`,
		`{"addresses": ["a:1"], "username": "u", "password": "u"}`,
		`{"addresses": ["a:1"], "password": "u"}`,
		`{"addresses": ["a:1"], "db": 1}`,
		`{"addresses": ["a:1"], "tls": {}}`,
		`{"addresses": ["a:1"], "tls": {"server_name": "a"}}`,
		`{"addresses": ["a:1"], "tls": {"insecure_skip_verify": true}}`,
		`{"addresses": ["a:1"], "prefix": "a"}`,
		`{"addresses": ["a:1"], "prefix": "b"}`,
		`{"addresses": ["a:1", "b:2"]}`,
		`{"addresses": ["b:2", "a:1"]}`,
	} {
		s, err := provisioned(t, settings)
		if err != nil {
			t.Fatalf("%s: %v", settings, err)
		}
		if other, taken := seen[s.PoolKey()]; taken {
			t.Errorf("%s and %s share their place in the pool", settings, other)
		}
		seen[s.PoolKey()] = settings
	}
	t.Setenv("TEST_REDIS_PREFIX", "a\n")
	for what, settings := range map[string]string{
		"a URL and an address":                `{"url": "redis://a:1"}`,
		"the default prefix and the same one": `{"addresses": ["a:1"], "prefix": "dedup:"}`,
		"a prefix and its placeholder":        `{"addresses": ["a:1"], "prefix": "{env.TEST_REDIS_PREFIX}"}`,
		"another timeout and the default one": `{"addresses": ["a:1"], "timeout": "1s"}`,
		"database 0 and the default one":      `{"addresses": ["a:1"], "db": 0}`,
		"database 0 beside a URL without one": `{"url": "redis://a:1", "db": 0}`,
		"database 0 of a cluster":             `{"addresses": ["a:1"], "cluster": true, "db": 0}`,
		"a name in the URL and one beside it": `{"url": "redis://u@a:1", "password": "u"}`,
		"a number of replicas and none":       `{"addresses": ["a:1"], "wait_replicas": 1}`,
	} {
		same, err := provisioned(t, settings)
		if err != nil || seen[same.PoolKey()] == "" {
			t.Errorf("%s are two stores: %v", what, err)
		}
	}
}

// The name may stand in the URL and the password beside it, or the other way round.
func TestRedisNameAndPasswordApart(t *testing.T) {
	for _, settings := range []string{
		`{"url": "redis://u@h", "password": "p"}`,
		`{"url": "redis://:p@h", "username": "u"}`,
		`{"urls": ["redis://u@h", "redis://u@i"], "password": "p"}`,
	} {
		s, err := provisioned(t, settings)
		if err != nil || s.options.Username != "u" || s.options.Password != "p" {
			t.Errorf("%s: %q, %q, %v", settings, s.options.Username, s.options.Password, err)
		}
	}
}

// Handlers that use one Redis have it open together, under the same settings.
func TestOneRedisHasOneTuning(t *testing.T) {
	app := new(App)
	use := func(settings string) (*storepool.Handle, error) {
		config, err := provisioned(t, settings)
		if err != nil {
			t.Fatal(err)
		}
		return app.use(&storepool.Handle{Config: config, Key: config.PoolKey()}, new(Settings))
	}
	first, err := use(`{"url": "redis://a"}`)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := use(`{"url": "redis://a"}`); again != first || err != nil {
		t.Errorf("the same settings: %v, %v", again, err)
	}
	if other, err := use(`{"url": "redis://a", "wait_replicas": 1, "prefix": "safe:"}`); other == first || err != nil {
		t.Errorf("another prefix: %v", err)
	}
	for _, settings := range []string{`{"url": "redis://a", "wait_replicas": 1}`, `{"url": "redis://a", "timeout": "2s"}`} {
		if _, err := use(settings); err == nil || !strings.Contains(err.Error(), "another timeout or wait_replicas") {
			t.Errorf("%s: %v", settings, err)
		}
	}
}

// What a reload changes of them counts for the store that stays open.
func TestTuningReachesAnOpenRedis(t *testing.T) {
	address := `"addresses": ["` + redistest.Start(t).Addr + `"]`
	first, err := provisioned(t, "{"+address+"}")
	if err != nil {
		t.Fatal(err)
	}
	next, err := provisioned(t, "{"+address+`, "wait_replicas": 1}`)
	if err != nil {
		t.Fatal(err)
	}
	store, err := first.Open(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	for n, by := range []*RedisStore{first, next} { // there is no replica
		by.Tune(store)
		key := idempotency.Identity{ID: fmt.Sprint(n)}.Key()
		claimed, err := store.Claim(t.Context(), idempotency.Claim{Key: key, Token: "token", Terms: idempotency.Terms{Lease: time.Minute, Retention: time.Hour}})
		if err != nil {
			t.Fatal(err)
		}
		kept := idempotency.Settlement{State: idempotency.Complete, Retention: time.Hour, Response: &idempotency.Response{Status: 201}}
		if err := store.Settle(t.Context(), key, claimed.Record, kept); err != nil {
			t.Fatal(err)
		}
		if got := store.(*redis.Store).Unreplicated(); got != int64(n) {
			t.Errorf("with wait_replicas %d, %d responses are on no replica", n, got)
		}
	}
}
