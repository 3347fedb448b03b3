package file

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"
)

// placed writes the files of a store into a new directory.
func placed(t *testing.T, files map[string]string) string {
	t.Helper()
	path := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(path, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// isRefused fails the test if a store opens, if its error does not name the file, or if it
// was changed.
func isRefused(t *testing.T, files map[string]string, hit, how string) {
	t.Helper()
	path := placed(t, files)
	before := contents(t, path)
	s, err := Open(path, zap.NewNop())
	if err == nil {
		closeStore(t, s)
		t.Errorf("%s: it opens", how)
		return
	}
	if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), hit) {
		t.Errorf("%s: the error does not name what is damaged: %v", how, err)
	}
	if !maps.Equal(contents(t, path), before) {
		t.Errorf("%s: it was changed", how)
	}
}

// theManifest returns the name of the MANIFEST that counts among the files of a store.
func theManifest(t *testing.T, files map[string]string) string {
	t.Helper()
	for name := range files {
		if marker, ok := strings.CutPrefix(name, "marker.manifest."); ok {
			_, manifest, _ := strings.Cut(marker, ".")
			return manifest
		}
	}
	t.Fatal("there is no MANIFEST")
	return ""
}

// A MANIFEST with a byte that was changed anywhere, or that has lost its end, is refused: what
// is behind that place would be forgotten, and its tables deleted.
func TestDamagedManifestIsRefused(t *testing.T) {
	files := storeOf(t, 200)
	name := theManifest(t, files)
	whole := files[name]
	for at := 0; at < len(whole); at += 3 {
		damaged := []byte(whole)
		damaged[at] ^= 4
		files[name] = string(damaged)
		isRefused(t, files, name, fmt.Sprintf("byte %d of %d", at, len(whole)))
		files[name] = whole[:at]
		isRefused(t, files, name, fmt.Sprintf("cut to %d bytes of %d", at, len(whole)))
	}
}

// What follows what was flushed of a MANIFEST is of an edit that was being written when the
// machine crashed. The store opens without it, also when it crashes so more than once.
func TestTornEndOfAManifest(t *testing.T) {
	for what, torn := range map[string]string{
		"zeros": strings.Repeat("\x00", 100), "noise": strings.Repeat("x", 100), "part of an edit": "\x00\x00\x00\x00\x40\x00\x01\x02\x10",
	} {
		files := storeOf(t, 200)
		for range 2 {
			name := theManifest(t, files)
			files[name] += torn
			path := placed(t, files)
			s, err := Open(path, zap.NewNop())
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for i := range 200 {
				replays(t, s, fmt.Sprint(i))
			}
			closeStore(t, s)
			clear(files)
			for name, content := range contents(t, path) {
				files[filepath.Base(name)] = content
			}
		}
	}
}

// A crash can come when the next MANIFEST was flushed, and has not taken the place of the one
// before. The mark is of the next one then.
func TestMarkOfTheNextManifest(t *testing.T) {
	files := storeOf(t, 200)
	path := placed(t, files)
	number, _ := manifestNumber(theManifest(t, files))
	mark := openMark(vfs.Default, path)
	if err := mark.setManifest(number+100, 1000, 7); err != nil {
		t.Fatal(err)
	}
	mark.close()
	s := reopen(t, path)
	for i := range 200 {
		replays(t, s, fmt.Sprint(i))
	}
}

// unflushed returns the files of a store whose changes are in several logs, because its
// tables could not be written, and how many keys it keeps.
func unflushed(t *testing.T) (files map[string]string, logs []string, keys int) {
	t.Helper()
	path := newPath(t)
	fs := newBreakable(vfs.Default)
	s := reopenIn(t, fs, path)
	goOn := make(chan struct{})
	fs.fail(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && (strings.HasSuffix(op.Path, ".sst") || strings.HasSuffix(op.Path, blobSuffix)) {
			<-goOn
		}
		return nil
	})
	files = make(map[string]string)
	for ; len(logs) < memTables; keys++ {
		settlement := completeAs(fmt.Sprint(keys))
		settlement.Response.Header["X-Filling"] = []string{strings.Repeat("x", 64<<10)}
		if err := keepAs(t.Context(), s, fmt.Sprint(keys), settlement); err != nil {
			t.Fatal(err)
		}
		var err error
		if logs, err = filepath.Glob(filepath.Join(path, "*.log")); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range contents(t, path) {
		if base := filepath.Base(name); base != holderName {
			files[base] = content
		}
	}
	close(goOn)
	for i := range logs {
		logs[i] = filepath.Base(logs[i])
	}
	return files, logs, keys
}

// Each log from the first one on that the MANIFEST needs has to be there.
func TestMissingLogIsRefused(t *testing.T) {
	files, logs, keys := unflushed(t)
	for _, name := range logs {
		without := maps.Clone(files)
		delete(without, name)
		isRefused(t, without, name, "without "+name)
	}
	s := reopen(t, placed(t, files))
	for i := range keys {
		replays(t, s, fmt.Sprint(i))
	}
}

// A log that has lost its end, all of it, or a byte, is refused, and not only the newest one:
// pebble takes one that ends between two records for whole, and forgets the rest.
func TestDamagedLogIsRefused(t *testing.T) {
	files, logs, _ := unflushed(t)
	for _, name := range logs {
		content := files[name]
		middle := len(content) / 2
		for how, damaged := range map[string]string{
			"an empty ":              "",
			"half of ":               content[:middle],
			"the first block of ":    content[:32<<10],
			"a changed byte within ": content[:middle] + string(content[middle]^1) + content[middle+1:],
		} {
			hit := maps.Clone(files)
			hit[name] = damaged
			isRefused(t, hit, name, how+name)
		}
	}
}

// A log that the MANIFEST does not need any more may be gone.
func TestFlushedLogMayBeGone(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	var before []string
	for round := range 4 {
		keepFrom(t, s, round*50, round*50+50)
		before, _ = filepath.Glob(filepath.Join(path, "*.log"))
		if err := s.database.db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	keepFrom(t, s, 200, 210)
	files := make(map[string]string)
	for name, content := range contents(t, path) {
		if base := filepath.Base(name); base != holderName {
			files[base] = content
		}
	}
	gone := 0
	for _, name := range before {
		if _, there := files[filepath.Base(name)]; there {
			gone++
		}
		delete(files, filepath.Base(name))
	}
	if gone == 0 {
		t.Fatal("there is none to remove")
	}
	again := reopen(t, placed(t, files))
	for i := range 210 {
		replays(t, again, fmt.Sprint(i))
	}
}
