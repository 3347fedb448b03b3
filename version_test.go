package caddydedup

import (
	"runtime/debug"
	"testing"
)

func TestVersionBeforeCaddys(t *testing.T) {
	caddys := &debug.Module{Path: "github.com/caddyserver/caddy/v2", Version: "v2.11.9"}
	own := func(version string) debug.Module {
		return debug.Module{Path: "github.com/caddy-dedup/caddy-dedup", Version: version}
	}
	clean := []debug.BuildSetting{
		{Key: "vcs", Value: "git"},
		{Key: "vcs.revision", Value: "75f25df0c3e1a2b4c6d8e0f1a3b5c7d9e1f3a5b7"},
		{Key: "vcs.modified", Value: "false"},
	}
	changed := []debug.BuildSetting{
		{Key: "vcs.modified", Value: "true"},
		{Key: "vcs.revision", Value: "75f25df0c3e1a2b4c6d8e0f1a3b5c7d9e1f3a5b7"},
	}
	elsewhere := debug.Module{Path: "example.com/tools", Version: "v9.9.9"}
	released := own("v0.1.0")

	for name, c := range map[string]struct {
		given string
		info  *debug.BuildInfo
		want  string
	}{
		"no build information":           {"", nil, "caddy-dedup (devel)"},
		"none, and a version was given":  {"v0.1.0", nil, "caddy-dedup v0.1.0"},
		"go install of a version":        {"", &debug.BuildInfo{Main: own("v0.1.0"), Deps: []*debug.Module{caddys}}, "caddy-dedup v0.1.0 with Caddy"},
		"a folder without a repository":  {"", &debug.BuildInfo{Main: own("(devel)"), Deps: []*debug.Module{caddys}}, "caddy-dedup (devel) with Caddy"},
		"a module without a version":     {"", &debug.BuildInfo{Main: own(""), Deps: []*debug.Module{caddys}}, "caddy-dedup (devel) with Caddy"},
		"such a folder, a version given": {"v0.1.0", &debug.BuildInfo{Main: own("(devel)"), Deps: []*debug.Module{caddys}}, "caddy-dedup v0.1.0 with Caddy"},
		"a clean repository":             {"", &debug.BuildInfo{Main: own("v0.1.0"), Deps: []*debug.Module{caddys}, Settings: clean}, "caddy-dedup v0.1.0 (commit 75f25df0c3e1) with Caddy"},
		"a changed repository":           {"", &debug.BuildInfo{Main: own("v0.1.0+dirty"), Deps: []*debug.Module{caddys}, Settings: changed}, "caddy-dedup v0.1.0+dirty (commit 75f25df0c3e1, modified) with Caddy"},
		"a version given wins over Go's": {"v0.2.0", &debug.BuildInfo{Main: own("v0.1.0"), Deps: []*debug.Module{caddys}, Settings: clean}, "caddy-dedup v0.2.0 (commit 75f25df0c3e1) with Caddy"},
		"a short commit": {"", &debug.BuildInfo{Main: own("v0.1.0"), Deps: []*debug.Module{caddys},
			Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "75f25"}}}, "caddy-dedup v0.1.0 (commit 75f25) with Caddy"},
		"a tool of another module": {"", &debug.BuildInfo{Main: elsewhere, Deps: []*debug.Module{&released, caddys}, Settings: clean}, "caddy-dedup v0.1.0 with Caddy"},
		"replaced in that module": {"", &debug.BuildInfo{Main: elsewhere, Deps: []*debug.Module{
			{Path: released.Path, Version: "v0.1.0", Replace: &debug.Module{Path: "../fork"}}, caddys}}, "caddy-dedup (devel) with Caddy"},
		"modules that nobody recorded": {"", &debug.BuildInfo{Settings: clean}, "caddy-dedup (devel)"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := beforeCaddysVersion(c.given, c.info); got != c.want {
				t.Errorf("got %q; want %q", got, c.want)
			}
		})
	}
}
