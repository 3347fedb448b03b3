package measure

import (
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/report"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/servers"
)

// describe notes where the run is, and with what.
func (b *Bench) describe() error {
	b.result.Machine = machine()
	for _, tool := range []struct {
		name, program string
		arguments     []string
	}{
		{"Go", "go", []string{"env", "GOVERSION"}},
		{"Caddy", "go", []string{"-C", b.Project, "list", "-m", "-f", "{{.Version}}", "github.com/caddyserver/caddy/v2"}},
		{"Redis", "redis-server", []string{"--version"}},
	} {
		said, err := servers.Output(b.ctx, tool.program, tool.arguments...)
		if err != nil {
			return err
		}
		b.result.Versions = append(b.result.Versions, report.Named{Name: tool.name, Text: said})
	}
	b.result.Commit = b.commit()
	return nil
}

// commit is the source's; a folder without its repository has none.
func (b *Bench) commit() string {
	commit, err := servers.Output(b.ctx, "git", "-C", b.Project, "rev-parse", "--short", "HEAD")
	if err != nil {
		return "unknown"
	}
	// What the run itself writes is no change of what was measured.
	if changed, err := servers.Output(b.ctx, "git", "-C", b.Project, "status", "--porcelain", "--", "*.go", "go.mod"); err != nil || changed != "" {
		commit += "+"
	}
	return commit
}

func machine() report.Machine {
	m := report.Machine{CPU: runtime.GOARCH, Cores: runtime.NumCPU()}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if found := regexp.MustCompile(`(?m)^model name\s*:\s*(.+)$`).FindSubmatch(text); found != nil {
			m.CPU = string(found[1])
		}
	}
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if found := regexp.MustCompile(`(?m)^MemTotal:\s*(\d+) kB$`).FindSubmatch(text); found != nil {
			kilobytes, _ := strconv.ParseInt(string(found[1]), 10, 64) // it is digits
			m.Memory = kilobytes << 10
		}
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(text))
	}
	return m
}
