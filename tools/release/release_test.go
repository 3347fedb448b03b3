package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

var made = time.Date(2026, 11, 22, 6, 58, 28, 0, time.UTC)

// unpacked returns the files of an archive: what is in each, and its mode.
func unpacked(t *testing.T, path string) (contents map[string]string, modes map[string]os.FileMode) {
	t.Helper()
	contents, modes = make(map[string]string), make(map[string]os.FileMode)
	take := func(name string, mode os.FileMode, at time.Time, r io.Reader) {
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if contents[name] = string(content); !at.Equal(made) {
			t.Errorf("%s is of %s, want %s", name, at, made)
		}
		modes[name] = mode
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(path) == ".zip" {
		archive, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range archive.File {
			r, err := file.Open()
			if err != nil {
				t.Fatal(err)
			}
			take(file.Name, file.Mode(), file.Modified, r)
			r.Close()
		}
		return contents, modes
	}
	compressed, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	for archive := tar.NewReader(compressed); ; {
		header, err := archive.Next()
		if err == io.EOF {
			return contents, modes
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Gid != 0 || header.Uname != "" {
			t.Errorf("%s is somebody's: %d, %d, %q", header.Name, header.Uid, header.Gid, header.Uname)
		}
		take(header.Name, header.FileInfo().Mode(), header.ModTime, archive)
	}
}

// Both forms of an archive have all entries, and are the same each time.
func TestArchives(t *testing.T) {
	entries := []entry{{"caddy-dedup", []byte("program"), true}, {"man/caddy-dedup.8", []byte(strings.Repeat("page ", 1000)), false}}
	for _, zipped := range []bool{false, true} {
		var first []byte
		for range 2 {
			dir := t.TempDir()
			if err := writeArchive(filepath.Join(dir, "a"), zipped, "folder", entries, made); err != nil {
				t.Fatal(err)
			}
			files, err := os.ReadDir(dir)
			if err != nil || len(files) != 1 {
				t.Fatalf("it wrote %v, %v", files, err)
			}
			path := filepath.Join(dir, files[0].Name())
			contents, modes := unpacked(t, path)
			if len(contents) != 2 || contents["folder/caddy-dedup"] != "program" || contents["folder/man/caddy-dedup.8"] != string(entries[1].content) {
				t.Errorf("%s has %v", path, contents)
			}
			if modes["folder/caddy-dedup"] != 0o755 || modes["folder/man/caddy-dedup.8"] != 0o644 {
				t.Errorf("%s has the modes %v", path, modes)
			}
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if first != nil && !bytes.Equal(raw, first) {
				t.Errorf("%s is another one the second time", path)
			}
			first = raw
		}
	}
}

func TestChecksums(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"b": "two", "a": "one"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeChecksums(dir); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "checksums.txt"))
	want := fmt.Sprintf("%x  a\n%x  b\n", sha256.Sum256([]byte("one")), sha256.Sum256([]byte("two")))
	if err != nil || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

// The binary of this test stands for one of a release: Go has written into it, too, what
// it is made of.
func TestPartsOfABinary(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a.cdx.json")
	if err := writeParts(path, self, "v0.1.0", made); err != nil {
		t.Fatal(err)
	}
	bom := readParts(t, path)
	if bom.Metadata.Component.Version != "v0.1.0" || bom.Metadata.Timestamp != "2026-11-22T06:58:28Z" || len(bom.Metadata.Component.Hashes[0].Content) != 64 {
		t.Errorf("it is of %+v", bom.Metadata)
	}
	if !slices.Contains(bom.urls(), "pkg:golang/std@"+strings.TrimPrefix(runtime.Version(), "go")) ||
		!slices.ContainsFunc(bom.urls(), func(url string) bool {
			return strings.HasPrefix(url, "pkg:golang/github.com/CycloneDX/cyclonedx-go@v")
		}) {
		t.Errorf("it lacks parts: %q", bom.urls())
	}
}

// parts is what a list of parts says, as far as tests ask.
type parts struct {
	BomFormat string
	Metadata  struct {
		Timestamp string
		Component struct {
			Version string
			Purl    string
			Hashes  []struct{ Alg, Content string }
		}
	}
	Components []struct{ Purl string }
}

func (p parts) urls() (all []string) {
	for _, c := range p.Components {
		all = append(all, c.Purl)
	}
	return all
}

func readParts(t *testing.T, path string) parts {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var p parts
	if err := json.Unmarshal(text, &p); err != nil || p.BomFormat != "CycloneDX" {
		t.Fatalf("%s is not in the form of CycloneDX: %v", path, err)
	}
	return p
}

// A release has one binary for a system, whichever way it is had.
func TestFlagsAreThoseOfTheImage(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build %s -ldflags %q -o ", strings.Join(buildFlags, " "), linkerFlags)
	if !strings.Contains(string(text), want) {
		t.Errorf("the Dockerfile does not build by %s", want)
	}
}

func TestNotesOfAVersion(t *testing.T) {
	const log = "# Changelog\n\n## [Unreleased]\n\nNothing.\n\n## [0.2.0] - 2026-12-01\n\n### Added\n\n- two\n\n## [0.1.0]\n\n- one\n\n[Unreleased]: https://x\n[0.1.0]: https://y\n"
	for version, want := range map[string]string{"v0.2.0": "### Added\n\n- two", "v0.1.0": "- one"} {
		if got, err := notesOf(log, version); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", version, got, err, want)
		}
	}
	if got, err := notesOf(log, "v0.3.0"); err == nil {
		t.Errorf("of a version that is not there it says %q", got)
	}
}

func TestMistakes(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "old"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1795330708")
	for name, c := range map[string]struct {
		r       release
		targets string
		rest    []string
		says    string
	}{
		"no version":    {release{}, "linux/amd64", nil, `-version ""`},
		"wrong version": {release{version: "0.1.0"}, "linux/amd64", nil, `-version "0.1.0"`},
		"wrong system":  {release{version: "v0.1.0"}, "linux", nil, `"linux" is not a system`},
		"old files":     {release{version: "v0.1.0", output: full}, "linux/amd64", nil, "not empty: it has old"},
		"argument":      {release{version: "v0.1.0"}, "linux/amd64", []string{"now"}, `"now"`},
	} {
		if err := c.r.run(t.Context(), c.targets, false, c.rest); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v; want an error with %s", name, err, c.says)
		}
	}
}

// All of a release is built, and what is for this system is unpacked and run. It compiles
// everything six times, so it is for .ci/run long.
func TestRelease(t *testing.T) {
	if os.Getenv("DEDUP_RELEASE") == "" {
		t.Skip("DEDUP_RELEASE is not set; .ci/run long sets it")
	}
	t.Setenv("SOURCE_DATE_EPOCH", fmt.Sprint(made.Unix()))
	targets := allTargets
	if given := os.Getenv("DEDUP_RELEASE"); given != "1" {
		targets = given
	}
	build := func(targets string) string {
		r := release{root: "../..", version: "v0.1.0-try", output: filepath.Join(t.TempDir(), "release")}
		if err := r.run(t.Context(), targets, false, nil); err != nil {
			t.Fatal(err)
		}
		return r.output
	}
	out := build(targets)
	sums, err := os.ReadFile(filepath.Join(out, "checksums.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range strings.Split(targets, ",") {
		system, arch, _ := strings.Cut(text, "/")
		name, extension, program := "caddy-dedup_0.1.0-try_"+system+"_"+arch, ".tar.gz", "caddy-dedup"
		if system == "windows" {
			extension, program = ".zip", "caddy-dedup.exe"
		}
		contents, modes := unpacked(t, filepath.Join(out, name+extension))
		for _, file := range append(slices.Clone(documents), program, "completions/caddy-dedup.bash", "man/caddy-dedup-health.8", "man/caddy-dedup-proxy.8") {
			if len(contents[name+"/"+file]) == 0 {
				t.Errorf("%s has no %s", name, file)
			}
		}
		begins := map[string]string{"linux": "\x7fELF", "darwin": "\xcf\xfa\xed\xfe", "windows": "MZ"}[system]
		if binary := contents[name+"/"+program]; !strings.HasPrefix(binary, begins) || modes[name+"/"+program] != 0o755 {
			t.Errorf("%s begins with %.4q, and has the mode %s", program, binary, modes[name+"/"+program])
		}
		sum := fmt.Sprintf("%x", sha256.Sum256([]byte(contents[name+"/"+program])))
		bom := readParts(t, filepath.Join(out, name+".cdx.json"))
		if bom.Metadata.Component.Hashes[0].Content != sum || !strings.HasSuffix(bom.Metadata.Component.Purl, "?goos="+system+"&goarch="+arch) || len(bom.Components) < 50 {
			t.Errorf("the parts of %s are those of %+v, and are %d", name, bom.Metadata.Component, len(bom.Components))
		}
		for _, file := range []string{name + extension, name + ".cdx.json"} {
			if !strings.Contains(string(sums), "  "+file+"\n") {
				t.Errorf("there is no checksum of %s", file)
			}
		}
		if system == runtime.GOOS && arch == runtime.GOARCH {
			path := filepath.Join(t.TempDir(), program)
			if err := os.WriteFile(path, []byte(contents[name+"/"+program]), 0o700); err != nil { //nolint:gosec // a program
				t.Fatal(err)
			}
			said, err := exec.CommandContext(t.Context(), path, "version").Output()
			if err != nil || !strings.HasPrefix(string(said), "caddy-dedup v0.1.0-try with Caddy v2.") {
				t.Errorf("it says %q, %v", said, err)
			}
			again, err := os.ReadFile(filepath.Join(build(text), "checksums.txt"))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(again)) {
				if !strings.Contains(string(sums), line) {
					t.Errorf("the second time, another file has the checksum %s", line)
				}
			}
		}
	}
}
