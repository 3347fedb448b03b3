package servers

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/process"
)

// Site is what a proxy is configured to do.
type Site struct {
	// Global are the lines of the global option `dedup`; nil leaves it out.
	Global []string
	// Handler are the lines of the directive `dedup`; nil leaves it out: the proxy is
	// then plain Caddy.
	Handler []string
	// Bare is the store of the handler in the directory bare, which then takes the place of
	// caddy-dedup; "" for none.
	Bare string
	// Other has the binary of the other source, which BuildOther built.
	Other bool
	// Respond answers by itself, with so many bytes, in place of an upstream.
	Respond int
}

// Dedup is a site with the handler in front of the upstream.
func Dedup(store string, global ...string) Site {
	return Site{
		Global:  append([]string{"store " + store, "limits {", "memory_store 16GiB", "}"}, global...),
		Handler: []string{},
	}
}

// Caddy is a process of caddy-dedup, or of the handler in the directory bare.
type Caddy struct {
	*process.Process
	// Addr is the host:port that it serves.
	Addr string
	// Dir has all that the process writes.
	Dir string

	admin *http.Client
}

// Caddyfile is the configuration of a site, in front of an upstream.
func (site Site) Caddyfile(addr, upstream, admin string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "{\nadmin unix/%s\npersist_config off\nservers {\nprotocols h1\n}\n", admin)
	block := func(name string, lines []string) {
		if lines != nil {
			fmt.Fprintf(&b, "%s {\n%s\n}\n", name, strings.Join(lines, "\n"))
		}
	}
	block("dedup", site.Global)
	fmt.Fprintf(&b, "}\nhttp://%s {\nbind 127.0.0.1\n", addr)
	block("dedup", site.Handler)
	if site.Bare != "" {
		fmt.Fprintf(&b, "bare %s\n", site.Bare)
	}
	if site.Respond > 0 {
		fmt.Fprintf(&b, "header Content-Type application/json\nrespond \"%s\" 201\n", strings.Repeat("x", site.Respond))
	} else {
		fmt.Fprintf(&b, "reverse_proxy %s\n", upstream)
	}
	b.WriteString("}\n")
	return b.String()
}

// StartCaddy starts caddy-dedup with a site.
func (s *Stage) StartCaddy(name string, site Site, upstream *Upstream) (*Caddy, error) {
	dir, err := s.Dir()
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "admin.sock")
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(site.Caddyfile(addr, upstream.Addr, socket)), 0o600); err != nil {
		return nil, err
	}
	binary := s.binary
	if site.Other {
		binary = s.other()
	}
	if site.Bare != "" {
		if binary, err = s.buildBare(); err != nil {
			return nil, err
		}
	}
	p, err := s.set.Start(name, homeIn(dir), binary, "run", "--config", file, "--adapter", "caddyfile")
	if err != nil {
		return nil, err
	}
	c := &Caddy{Process: p, Addr: addr, Dir: dir, admin: &http.Client{Timeout: startPatience, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
	return c, s.set.Await(p, startPatience, func() error {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// StopCaddy ends the process, and removes what it wrote.
func (s *Stage) StopCaddy(c *Caddy) error {
	c.admin.CloseIdleConnections()
	s.set.Stop(c.Process)
	return s.Remove(c.Dir)
}

func homeIn(dir string) []string {
	return []string{"HOME=" + dir, "XDG_DATA_HOME=" + filepath.Join(dir, "data"), "XDG_CONFIG_HOME=" + filepath.Join(dir, "config")}
}

// Metric returns one value of the process's metrics, which must be there.
func (c *Caddy) Metric(name string) (float64, error) {
	answer, err := c.admin.Get("http://127.0.0.1/metrics")
	if err != nil {
		return 0, fmt.Errorf("the metrics of %s: %w", c.Name, err)
	}
	defer answer.Body.Close()
	value, err := metricIn(answer.Body, name)
	if err != nil {
		return 0, fmt.Errorf("the metrics of %s: %w", c.Name, err)
	}
	return value, nil
}

// metricIn finds a metric without labels in the text form of Prometheus.
func metricIn(text io.Reader, name string) (value float64, err error) {
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("there is no %q", name)
}

// Allocations returns how many objects the process has allocated.
func (c *Caddy) Allocations() (float64, error) { return c.Metric("go_memstats_mallocs_total") }

// LiveHeap collects garbage and returns how many bytes of the heap are left.
func (c *Caddy) LiveHeap() (float64, error) {
	answer, err := c.admin.Get("http://127.0.0.1/debug/pprof/heap?gc=1")
	if err != nil {
		return 0, fmt.Errorf("the heap of %s: %w", c.Name, err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return 0, err
	}
	return c.Metric("go_memstats_heap_alloc_bytes")
}
