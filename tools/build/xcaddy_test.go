package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// served are tests of the project for a binary that is given to them, which use no command but
// Caddy's own: a duplicate is replayed, and probes are answered.
var served = []string{"TestExampleCaddyfile", "TestAddressOfAReplica"}

// What the project's own file and xcaddy's own command build has the module in it, and
// serves a duplicate; also with another plugin. Each build takes minutes where nothing is
// compiled yet, so it is for .ci/run long.
func TestBuildsByXcaddy(t *testing.T) {
	if os.Getenv("DEDUP_XCADDY") == "" {
		t.Skip("DEDUP_XCADDY is not set; .ci/run long sets it")
	}
	config, err := filepath.Abs("../../xcaddy.json")
	if err != nil {
		t.Fatal(err)
	}
	root, out, caddy := filepath.Dir(config), t.TempDir(), caddyOfGoMod(t)
	greeting := filepath.Join(out, "greeting")
	plugin(t, greeting, caddy)

	// From a directory that has nothing to do with the project. It also fetches what the
	// builds after it need.
	t.Chdir(t.TempDir())
	ours := filepath.Join(out, "caddy-dedup")
	b := request{config: config, output: ours, version: "v0.1.0-try", with: []string{"example.com/greeting=" + greeting}}
	if err := b.build(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	want := "caddy-dedup v0.1.0-try with Caddy " + caddy + " "
	if said := run(t, root, ours, "version"); !strings.HasPrefix(said, want) {
		t.Errorf("the build says %q; want %q", said, want)
	}
	tryBuild(t, root, ours, "http.handlers.greeting")

	// Without a version, Go asks the network which ones there are of a module that is only here, and takes
	// a refusal for an error.
	for name, with := range map[string][]string{
		"alone":               nil,
		"with another plugin": {"--with", "example.com/greeting=" + greeting},
	} {
		t.Run(name, func(t *testing.T) {
			theirs := filepath.Join(t.TempDir(), "caddy")
			args := append([]string{"tool", "-modfile=tools/go.mod", "xcaddy", "build", caddy,
				"--with", "github.com/caddy-dedup/caddy-dedup@v0.0.0=.", "--output", theirs}, with...)
			run(t, root, "go", args...)
			if said := run(t, root, theirs, "version"); !strings.HasPrefix(said, caddy+" ") {
				t.Errorf("the build says %q; want Caddy's version, as another name was not given", said)
			}
			if with == nil {
				tryBuild(t, root, theirs)
			} else {
				tryBuild(t, root, theirs, "http.handlers.greeting")
			}
		})
	}
}

// plugin writes a small plugin of Caddy's into a folder.
func plugin(t *testing.T, folder, caddy string) {
	t.Helper()
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, "go.mod"), "module example.com/greeting\n\ngo 1.26.0\n\nrequire github.com/caddyserver/caddy/v2 "+caddy+"\n")
	write(t, filepath.Join(folder, "greeting.go"), `package greeting

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(Greeting{})
	httpcaddyfile.RegisterHandlerDirective("greeting", func(httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		return Greeting{}, nil
	})
	httpcaddyfile.RegisterDirectiveOrder("greeting", httpcaddyfile.Before, "header")
}

type Greeting struct{}

func (Greeting) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.greeting", New: func() caddy.Module { return new(Greeting) }}
}

func (Greeting) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	w.Header().Set("Greeting", "hello")
	return next.ServeHTTP(w, r)
}
`)
}

// tryBuild checks that a build has the project's modules and these, and its one command, and serves
// duplicates.
func tryBuild(t *testing.T, root, binary string, modules ...string) {
	t.Helper()
	listed := strings.Fields(run(t, root, binary, "list-modules", "--skip-standard"))
	for _, module := range append(modules, "http.handlers.dedup", "http.handlers.dedup_health", "http.handlers.dedup_dashboard",
		"dedup.stores.file", "dedup.stores.memory", "dedup.stores.redis", "admin.api.dedup", "dedup") {
		if !slices.Contains(listed, module) {
			t.Errorf("%s does not list %s: %q", binary, module, listed)
		}
	}
	if len(modules) > 0 {
		caddyfile := filepath.Join(t.TempDir(), "Caddyfile")
		write(t, caddyfile, ":8080 {\n\tgreeting\n\tdedup\n\trespond done 201\n}\n")
		run(t, root, binary, "validate", "--config", caddyfile)
	}
	// Its commands are below one: the top level is Caddy's.
	for _, command := range []string{"proxy", "keys", "providers", "health"} {
		if said := run(t, root, binary, "dedup", command, "--help"); !strings.Contains(said, " dedup "+command) {
			t.Errorf("%s dedup %s --help says %q", binary, command, said)
		}
		if top := run(t, root, binary, "--help"); strings.Contains(top, "\n  "+command+" ") {
			t.Errorf("%s has the command %s beside Caddy's own", binary, command)
		}
	}
	t.Setenv("DEDUP_BINARY", binary)
	said := run(t, root, "go", "test", "./integration", "-count=1", "-v", "-run", "^("+strings.Join(served, "|")+")$")
	for _, name := range served {
		if !strings.Contains(said, "--- PASS: "+name+" ") {
			t.Errorf("%s has not passed:\n%s", name, said)
		}
	}
}

func run(t *testing.T, directory, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = directory
	cmd.Env = os.Environ()
	if program == "go" && args[0] == "tool" {
		cmd.Env = append(cmd.Env, "GOPROXY=off", "GONOSUMDB=*") // all of it was verified when it was fetched
	}
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, output)
	}
	return string(output)
}
