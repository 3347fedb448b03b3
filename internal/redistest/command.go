package redistest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Do sends a command over the unix socket, which needs no TLS, and returns the reply.
// If the server answers with an error, the test fails.
func (s *Server) Do(args ...any) any {
	s.t.Helper()
	reply, err := s.try(args...)
	if err != nil {
		s.t.Fatalf("%v at %s: %v", args, s.Addr, err)
	}
	return reply
}

func (s *Server) try(args ...any) (any, error) {
	client := redis.NewClient(&redis.Options{
		Network: "unix", Addr: s.Socket, Protocol: 2, DisableIdentity: true,
		MaxRetries: -1, ReadTimeout: timeout, WriteTimeout: timeout,
	})
	defer func() { _ = client.Close() }()
	return client.Do(context.Background(), args...).Result()
}

// Info returns one value of INFO, "" if there is none.
func (s *Server) Info(section, name string) string {
	s.t.Helper()
	return field(s.Do("INFO", section), name)
}

// Port returns the server's port.
func (s *Server) Port() string {
	_, port, _ := net.SplitHostPort(s.Addr)
	return port
}

// field finds a line "name:value" in a reply of many lines.
func field(reply any, name string) string {
	for line := range strings.Lines(fmt.Sprint(reply)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// await returns when a condition holds. The test fails if that takes longer than timeout.
func (s *Server) await(what string, holds func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(timeout); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s at %s: not true after %s: %s", binary, s.Addr, timeout, what)
		}
	}
}
