package caddydedup_test

import (
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/caddy-dedup/caddy-dedup"

// layers says which packages of this module each package may import, in code and
// in its tests. An arrow that is not here points the wrong way.
var layers = map[string]struct{ code, tests []string }{
	"":                         {code: list("caddymodule", "internal/cli")},
	"cmd/caddy-dedup":          {code: list("", "internal/cli")},
	"caddymodule":              {code: list("internal/admin", "internal/budget", "internal/dashboard", "internal/delivery", "internal/engine", "internal/exchange", "internal/httpfield", "internal/idempotency", "internal/identify", "internal/observe", "internal/report", "internal/seal", "internal/signature", "internal/store/file", "internal/store/memory", "internal/store/redis", "internal/storepool", "internal/toolcall", "internal/upstream"), tests: list("internal/deduptest", "internal/redistest")},
	"internal/exchange":        {code: list("internal/budget", "internal/delivery", "internal/engine", "internal/httpfield", "internal/idempotency", "internal/identify", "internal/recording", "internal/report", "internal/reqbody", "internal/storepool", "internal/upstream"), tests: list("internal/deduptest", "internal/store/memory")},
	"internal/observe":         {code: list("internal/budget", "internal/engine", "internal/httpfield", "internal/idempotency", "internal/identify", "internal/report", "internal/storepool", "internal/upstream"), tests: list("internal/delivery", "internal/signature", "internal/store/memory")},
	"internal/toolcall":        {code: list("internal/budget", "internal/canonicaljson", "internal/httpfield", "internal/idempotency", "internal/identify", "internal/upstream")},
	"internal/identify":        {code: list("internal/budget", "internal/canonicaljson", "internal/delivery", "internal/engine", "internal/httpfield", "internal/idempotency", "internal/report", "internal/reqbody", "internal/signature", "internal/upstream")},
	"internal/upstream":        {code: list("internal/budget", "internal/delivery", "internal/httpfield", "internal/idempotency", "internal/report", "internal/reqbody"), tests: list("internal/deduptest")},
	"internal/report":          {code: list("internal/budget", "internal/delivery", "internal/engine", "internal/idempotency", "internal/storepool")},
	"internal/recording":       {code: list("internal/budget")},
	"internal/reqbody":         {code: list("internal/budget", "internal/delivery", "internal/httpfield")},
	"internal/budget":          {},
	"internal/httpfield":       {},
	"internal/admin":           {code: list("internal/engine", "internal/idempotency"), tests: list("internal/admin/admintest")},
	"internal/admin/admintest": {code: list("internal/engine", "internal/idempotency", "internal/store/memory")},
	"internal/dashboard":       {code: list("internal/admin", "internal/idempotency"), tests: list("internal/admin/admintest")},
	"internal/canonicaljson":   {tests: list("internal/idempotency")},
	"internal/idempotency":     {code: list("internal/canonicaljson")},
	"internal/delivery":        {code: list("internal/canonicaljson", "internal/idempotency"), tests: list("internal/signature")},
	"internal/signature":       {code: list("internal/canonicaljson"), tests: list("internal/delivery")},
	"internal/engine":          {code: list("internal/idempotency", "internal/seal"), tests: list("internal/store/memory", "internal/store/storetest")},
	"internal/seal":            {code: list("internal/idempotency"), tests: list("internal/store/memory", "internal/store/storetest")},
	"internal/store/storetest": {code: list("internal/idempotency")},
	"internal/store/wakeup":    {code: list("internal/idempotency")},
	"internal/store/memory":    {code: list("internal/idempotency", "internal/store/wakeup"), tests: list("internal/store/storetest")},
	"internal/store/file":      {code: list("internal/idempotency", "internal/store/wakeup"), tests: list("internal/deduptest", "internal/store/storetest")},
	"internal/store/redis":     {code: list("internal/idempotency", "internal/store/wakeup"), tests: list("internal/deduptest", "internal/redistest", "internal/store/storetest")},
	"internal/cli":             {code: list("caddymodule", "internal/admin", "internal/delivery", "internal/idempotency", "internal/signature"), tests: list("internal/admin/admintest", "internal/deduptest", "internal/freeport")},
	"internal/storepool":       {code: list("internal/engine", "internal/idempotency"), tests: list("internal/store/memory")},
	"internal/deduptest":       {code: list("internal/budget")},
	"internal/freeport":        {},
	"internal/redistest":       {code: list("internal/freeport")},
	"integration":              {tests: list("integration/history", "internal/deduptest", "internal/delivery", "internal/freeport", "internal/redistest", "k8s")},
	"integration/history":      {},
	"k8s":                      {tests: list("internal/delivery", "internal/signature")},
}

// stayOut are the imports that only some packages may reach, over others or by
// themselves: what is not named here stays usable, and testable, without them.
var stayOut = []struct {
	imported string
	reaching []string
}{
	{"github.com/caddyserver/caddy/v2", list("", "cmd/caddy-dedup", "internal/cli", "caddymodule", "internal/exchange", "internal/observe", "internal/toolcall", "internal/identify", "internal/upstream", "internal/report")},
	{"github.com/redis/go-redis/v9", list("", "cmd/caddy-dedup", "internal/cli", "caddymodule", "internal/store/redis", "internal/redistest")},
	{"github.com/cockroachdb/pebble", list("", "cmd/caddy-dedup", "internal/cli", "caddymodule", "internal/store/file")},
}

func list(packages ...string) []string { return packages }

// goList returns what go list prints about packages, a line each.
func goList(t *testing.T, arguments ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list"}, arguments...)...).Output()
	if err != nil {
		t.Fatalf("go list %s: %v", strings.Join(arguments, " "), err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// inModule returns the package's path within this module, and whether it is one
// of it.
func inModule(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, module)
	return strings.TrimPrefix(rest, "/"), ok
}

func TestArrowsBetweenPackages(t *testing.T) {
	seen := 0
	for _, line := range goList(t, "-f", `{{.ImportPath}}|{{join .Imports " "}}|{{join .TestImports " "}} {{join .XTestImports " "}}`, "./...") {
		fields := strings.Split(line, "|")
		name, _ := inModule(fields[0])
		allowed, known := layers[name]
		if !known {
			t.Errorf("the package %q is not in the table of layers", name)
			continue
		}
		seen++
		inTests := append(slices.Clone(allowed.code), allowed.tests...)
		for i, may := range [][]string{allowed.code, append(inTests, name)} {
			for _, imported := range strings.Fields(fields[i+1]) {
				if other, ours := inModule(imported); ours && !slices.Contains(may, other) {
					t.Errorf("%q imports %q", name, other)
				}
			}
		}
	}
	if seen != len(layers) {
		t.Errorf("go list named %d of the %d packages in the table of layers", seen, len(layers))
	}
}

// CONTRIBUTING.md has the table of layers too, for people.
func TestContributingHasTheTableOfLayers(t *testing.T) {
	text, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "may import, of this module |\n|---|---|---|\n")
	table, _, _ := strings.Cut(rest, "\n\n")
	if !found {
		t.Fatal("it has no such table")
	}
	missing := maps.Clone(layers)
	for row := range strings.SplitSeq(table, "\n") {
		columns := strings.Split(row, " | ")
		says := packagesIn(columns[len(columns)-1])
		for _, name := range packagesIn(columns[0]) {
			may, ours := layers[name]
			if delete(missing, name); !ours {
				continue // a module of its own
			}
			want := may.code
			if len(want) == 0 && len(says) > 0 { // all that it has is tests
				want = may.tests
			}
			if !slices.Equal(says, slices.Sorted(slices.Values(want))) {
				t.Errorf("of %q it says that it may import %q, and it may import %q", name, says, want)
			}
		}
	}
	for name := range missing {
		t.Errorf("the package %q is not in it", name)
	}
}

// packagesIn returns the packages that a cell names, sorted. `internal/store/memory`, `file`
// names two that lie side by side.
func packagesIn(cell string) (names []string) {
	if strings.Contains(cell, "the root package") {
		names = append(names, "")
	}
	beside := ""
	for _, found := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		name := found[1]
		if at := strings.LastIndex(name, "/"); at >= 0 {
			beside = name[:at+1]
		} else if _, known := layers[name]; !known {
			name = beside + name
		}
		names = append(names, name)
	}
	return slices.Sorted(slices.Values(names))
}

func TestPackagesStayClearOfCaddyAndOfStores(t *testing.T) {
	for _, line := range goList(t, "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...") {
		fields := strings.Fields(line)
		name, _ := inModule(fields[0])
		for _, rule := range stayOut {
			reaches := slices.ContainsFunc(fields[1:], func(dep string) bool {
				return dep == rule.imported || strings.HasPrefix(dep, rule.imported+"/")
			})
			if reaches && !slices.Contains(rule.reaching, name) {
				t.Errorf("%q reaches %s", name, rule.imported)
			}
		}
	}
}

// The rules and the engine know no network. Only their own imports count: the
// logger brings an HTTP server with it.
func TestRulesAndEngineImportNoNetwork(t *testing.T) {
	for _, name := range []string{"idempotency", "engine", "seal", "canonicaljson", "budget"} {
		for _, imported := range goList(t, "-f", `{{join .Imports "\n"}}`, "./internal/"+name) {
			if imported == "net" || strings.HasPrefix(imported, "net/") {
				t.Errorf("%s imports %s", name, imported)
			}
		}
	}
}
