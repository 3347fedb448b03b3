package integration

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// eachStore runs a test with each store.
func eachStore(t *testing.T, test func(t *testing.T, store string)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		test(t, "store memory")
	})
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		test(t, "store file")
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, redisStore(t))
	})
}

// redisStore is a Redis store of the test's own: a real server where one is
// installed, and miniredis where not. With CI=true a missing one is a failure.
func redisStore(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil && os.Getenv("CI") != "true" {
		t.Log("no redis-server in PATH: this runs against miniredis")
		server := miniredis.RunT(t)
		server.ClockTTL(true) // keys expire by the clock
		return storeAt(server.Addr())
	}
	return storeAt(redistest.Start(t).Addr)
}

func storeAt(addr string) string { return "store redis redis://" + addr }

// recordIn names the record of a key in Redis.
func recordIn(key string) string { return "dedup:{" + key + "}" }

// runsIn reports whether Redis has a run in flight under the name of a record.
func runsIn(t *testing.T, client *redis.Client, name string) bool {
	return strings.HasPrefix(client.Get(t.Context(), name).Val(), "D1f")
}

// redisClient is a connection of the test's own.
func redisClient(t *testing.T, server *redistest.Server) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: server.Addr, DisableIdentity: true})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// monitor shows the commands that a server gets from clients; what scripts call
// inside it is left out, and so is what only sets up a connection.
type monitor struct {
	client *redis.Client
	lines  *bufio.Scanner
	marks  int
}

var (
	monitored = regexp.MustCompile(`^\+?[0-9.]+ \[\d+ ([^\]]+)\] "([^"]+)"`)
	setup     = []string{"hello", "client", "auth", "select", "ping", "info", "config", "command"}
)

func startMonitor(t *testing.T, server *redistest.Server) *monitor {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	fmt.Fprint(conn, "MONITOR\r\n")
	m := &monitor{client: redisClient(t, server), lines: bufio.NewScanner(conn)}
	m.lines.Buffer(nil, 1<<24)
	if !m.lines.Scan() || m.lines.Text() != "+OK" {
		t.Fatalf("MONITOR was answered %q", m.lines.Text())
	}
	return m
}

// since returns the commands of clients since it was called last.
func (m *monitor) since(t *testing.T) []string {
	t.Helper()
	m.marks++
	mark := fmt.Sprintf("mark-%d", m.marks)
	if err := m.client.Echo(context.Background(), mark).Err(); err != nil {
		t.Fatal(err)
	}
	var commands []string
	for m.lines.Scan() {
		line := m.lines.Text()
		found := monitored.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		who, command := found[1], strings.ToLower(found[2])
		if command == "echo" && strings.Contains(line, mark) {
			return commands
		}
		if who != "lua" && !slices.Contains(setup, command) {
			commands = append(commands, command)
		}
	}
	t.Fatalf("the monitor's connection ended: %v", m.lines.Err())
	return nil
}
