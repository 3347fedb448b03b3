package integration

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// image is what the Dockerfile says, as far as a test can do without Docker what it says.
// An instruction that the test does not know fails it, so that nothing is left out.
type image struct {
	from    []string          // of its stages
	runs    []string          // the commands of the first stage
	copies  [][]string        // of the last stage, from the first: flags, source, target
	env     []string          // of the last stage
	labels  map[string]string // of the last stage, as they are written
	user    string
	volume  string
	entry   []string
	command []string
	probe   []string
}

var (
	continued   = regexp.MustCompile(`\\\n\s*`)
	commentLine = regexp.MustCompile(`(?m)^#.*\n`)
	labelOf     = regexp.MustCompile(`([\w.]+)="([^"]*)"`)
)

// readImage reads the Dockerfile.
func readImage(t *testing.T) *image {
	t.Helper()
	text, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	list := func(words string) (all []string) {
		if err := json.Unmarshal([]byte(words), &all); err != nil {
			t.Fatalf("Dockerfile: %s is no list of words: %v", words, err)
		}
		return all
	}
	m := &image{labels: make(map[string]string)}
	for line := range strings.Lines(continued.ReplaceAllString(commentLine.ReplaceAllString(string(text), ""), " ")) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		last := len(m.from) == 2
		switch {
		case name == "FROM":
			m.from = append(m.from, rest)
		case name == "" || name == "ARG" || name == "EXPOSE" || !last && slices.Contains([]string{"WORKDIR", "COPY", "ENV"}, name):
		case name == "RUN" && !last:
			m.runs = append(m.runs, rest)
		case name == "COPY" && strings.HasPrefix(rest, "--from=build "):
			m.copies = append(m.copies, strings.Fields(rest)[1:])
		case name == "ENV":
			m.env = append(m.env, strings.Fields(rest)...)
		case name == "LABEL":
			for _, label := range labelOf.FindAllStringSubmatch(rest, -1) {
				m.labels[label[1]] = label[2]
			}
		case name == "USER":
			m.user = rest
		case name == "VOLUME":
			m.volume = rest
		case name == "ENTRYPOINT":
			m.entry = list(rest)
		case name == "CMD":
			m.command = list(rest)
		case name == "HEALTHCHECK":
			_, words, _ := strings.Cut(rest, " CMD ")
			m.probe = list(words)
		default:
			t.Fatalf("Dockerfile: this test does not know %q", line)
		}
	}
	return m
}

// build runs the commands of the first stage in a copy of what Docker would be sent, and
// returns the directory that they have filled.
func (m *image) build(t *testing.T, sources string) (out string) {
	t.Helper()
	out = filepath.Join(shortTempDir(t), "out")
	for _, run := range m.runs {
		if run == "go mod download" { // what it would bring is here
			continue
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(run, "/out/", out+"/"))
		cmd.Dir = sources
		cmd.Env = append(os.Environ(), "GOFLAGS=", "VERSION=v0.1.0-image", "TARGETOS=linux", "TARGETARCH="+runtime.GOARCH)
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", run, err, output)
		}
	}
	return out
}

// buildContext copies the files that .dockerignore leaves.
func buildContext(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	var kept, dropped []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line == "*" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "!") && !strings.ContainsAny(line, "*/"):
			kept = append(kept, line[1:])
		case strings.HasPrefix(line, "**/"):
			dropped = append(dropped, line[3:])
		default:
			t.Fatalf(".dockerignore: this test does not know %q", line)
		}
	}
	if !strings.Contains(string(text), "\n*\n") {
		t.Fatal(".dockerignore does not begin with nothing")
	}
	to := shortTempDir(t)
	for _, top := range kept {
		err := filepath.WalkDir(filepath.Join("..", top), func(name string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			for _, pattern := range dropped {
				if match, _ := filepath.Match(pattern, entry.Name()); match {
					if entry.IsDir() {
						return filepath.SkipDir
					}
					return nil
				}
			}
			target := filepath.Join(to, strings.TrimPrefix(name, ".."))
			if entry.IsDir() {
				return os.MkdirAll(target, 0o755)
			}
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			return os.WriteFile(target, content, 0o600)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// builtImage is what the first stage has made, for all tests of the image.
var builtImage struct {
	sync.Mutex
	binary []byte
}

// binaryOfImage returns the binary that the Dockerfile's own command builds.
func (m *image) binaryOfImage(t *testing.T) []byte {
	t.Helper()
	builtImage.Lock()
	defer builtImage.Unlock()
	if builtImage.binary == nil {
		binary, err := os.ReadFile(filepath.Join(m.build(t, buildContext(t)), "caddy-dedup"))
		if err != nil {
			t.Fatal(err)
		}
		builtImage.binary = binary
	}
	return builtImage.binary
}

// The same source gives the same binary, wherever it lies: also with what .dockerignore
// leaves out around it.
func TestBinaryOfTheImageIsReproducible(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the Dockerfile's commands are for a shell")
	}
	m := readImage(t)
	again, err := os.ReadFile(filepath.Join(m.build(t, ".."), "caddy-dedup"))
	if err != nil {
		t.Fatal(err)
	}
	if a, b := sha256.Sum256(m.binaryOfImage(t)), sha256.Sum256(again); a != b {
		t.Errorf("built in two directories, the binaries are %x and %x", a, b)
	}
}

// What the Dockerfile says of the image, apart from its files.
func TestImageSaysWhatItIs(t *testing.T) {
	t.Parallel()
	m := readImage(t)
	pinned := regexp.MustCompile(`^--platform=\$BUILDPLATFORM golang:1\.\d+\.\d+-\w+@sha256:[0-9a-f]{64} AS build$`)
	if len(m.from) != 2 || !pinned.MatchString(m.from[0]) || m.from[1] != "scratch" {
		t.Errorf("it is built from %q; want golang, pinned by its digest, and scratch", m.from)
	}
	const label = "org.opencontainers.image."
	for name, want := range map[string]string{
		"source": "https://github.com/caddy-dedup/caddy-dedup", "licenses": "Apache-2.0",
		"version": "$VERSION", "revision": "$REVISION", "created": "$CREATED",
	} {
		if got := m.labels[label+name]; got != want {
			t.Errorf("%s is %q, want %q", label+name, got, want)
		}
	}
	if m.user != "65532:65532" || m.volume != "/data" || len(m.entry) != 1 {
		t.Errorf("its user is %q, its volume %q, its program %q", m.user, m.volume, m.entry)
	}
	// Go's release in the image is one that go.mod takes.
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	release := regexp.MustCompile(`golang:(1\.\d+)`).FindStringSubmatch(m.from[0])
	if release == nil || !strings.Contains(string(mod), fmt.Sprintf("\ngo %s.", release[1])) {
		t.Errorf("the image is built by Go %q, and go.mod is for another", release)
	}
}
