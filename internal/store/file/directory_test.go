package file

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

func init() {
	children["open"] = func(path string) error {
		s, err := Open(path, zap.NewNop())
		if err != nil {
			return err
		}
		fmt.Println("open")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return s.Close()
	}
}

// contents returns the files below a path, by their names.
func contents(t *testing.T, path string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(path, func(name string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(name)
		found[name] = string(content)
		return err
	})
	must(t, err)
	return found
}

// refused fails the test unless Open returns an error with the path and these texts. With unchanged, it
// also fails if Open changes the directory.
func refused(t *testing.T, path string, unchanged bool, texts ...string) {
	t.Helper()
	var before map[string]string
	if unchanged {
		before = contents(t, path)
	}
	s, err := Open(path, zap.NewNop())
	if err == nil {
		_ = s.Close()
		t.Errorf("opened; want an error with %q", texts)
		return
	}
	for _, text := range append(texts, path) {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error %q does not have %q", err, text)
		}
	}
	if unchanged && !maps.Equal(contents(t, path), before) {
		t.Error("the directory was changed")
	}
}

func TestSecondProcessIsRefused(t *testing.T) {
	path := newPath(t)
	cmd, in, out := startChild(t, "open", path)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("the child printed %q, %v", line, err)
	}
	host, _ := os.Hostname()
	refused(t, path, false, fmt.Sprintf("in use by process %d on host %s", cmd.Process.Pid, host), "store redis")
	_ = in.Close()
	wantErr(t, cmd.Wait(), nil)
	openStore(t, vfs.Default, path)
	refused(t, path, false, fmt.Sprintf("in use by process %d", os.Getpid()))
}

func TestDirectoryOfAnotherProgramIsRefused(t *testing.T) {
	path := t.TempDir()
	file := filepath.Join(path, "letter.txt")
	must(t, os.WriteFile(file, []byte("Dear Sir"), 0o600))
	refused(t, path, true, "not a store", "letter.txt")
	refused(t, file, true, "it is a file")

	// The database of another program that uses pebble.
	path = newPath(t)
	closeStore(t, openStore(t, vfs.Default, path))
	must(t, os.Remove(filepath.Join(path, formatName)))
	refused(t, path, true, "not a store", "no "+formatName)
}

func TestOtherFormatIsRefused(t *testing.T) {
	path := newPath(t)
	closeStore(t, openStore(t, vfs.Default, path))
	for content, texts := range map[string][]string{
		formatPrefix + "1\n": {formatName, `format "1"`, `this version reads format "2"`},
		formatPrefix + "3\n": {formatName, `format "3"`, `this version reads format "2"`},
		"":                   {formatName, "damaged"},
		"a letter":           {formatName, "damaged"},
	} {
		must(t, os.WriteFile(filepath.Join(path, formatName), []byte(content), 0o600))
		refused(t, path, true, texts...)
	}
}

// Open refuses a damaged store with an error that names the file, and creates no new store in its place.
func TestDamagedDirectoryIsRefused(t *testing.T) {
	path := newPath(t)
	s := openStore(t, vfs.Default, path)
	keep(t, s, 0, 100)
	must(t, s.database.db.Flush())
	keep(t, s, 100, 500)
	whole := contents(t, path) // as a killed process leaves them
	clearSector := func(b []byte) []byte { clear(b[len(b)/8 : min(len(b), len(b)/8+512)]); return b }
	cut := func(b []byte) []byte { return b[:len(b)/2] }
	for _, c := range []struct {
		prefix, suffix, names string
		damage                func([]byte) []byte // nil removes the file
	}{
		{"marker.manifest", "", "file marker.manifest", nil},
		{"marker.format-version", "", "file marker.format-version", nil},
		{"MANIFEST", "", "MANIFEST", nil},
		{"MANIFEST", "", "MANIFEST", clearSector},
		{"OPTIONS", "", "OPTIONS", cut},
		{"", ".log", ".log", clearSector},
		{"", ".sst", "000005", nil},
		{"", ".sst", "000005", cut},
	} {
		path, found := newPath(t), 0
		must(t, os.MkdirAll(path, 0o700))
		for name, content := range whole {
			base := filepath.Base(name)
			if strings.HasPrefix(base, c.prefix) && strings.HasSuffix(base, c.suffix) {
				found++
				if c.damage == nil {
					continue
				}
				content = string(c.damage([]byte(content)))
			}
			must(t, os.WriteFile(filepath.Join(path, base), []byte(content), 0o600))
		}
		if found == 0 {
			t.Errorf("%d files are %s*%s", found, c.prefix, c.suffix)
		}
		refused(t, path, false, "damaged", "backup", c.names)
	}
}

// Files are private, even in a directory that is not.
func TestFilesArePrivate(t *testing.T) {
	made, given := newPath(t), t.TempDir()
	must(t, os.Chmod(given, 0o755))
	for _, path := range []string{made, given} {
		s := openStore(t, vfs.Default, path)
		keep(t, s, 0, 10)
		must(t, keepAs(t.Context(), s, "large", completeAs(largeText("large"))))
		must(t, s.database.db.Flush())
		for name := range contents(t, path) {
			if info, err := os.Stat(name); err != nil || info.Mode() != 0o600 && info.Size() > 0 {
				t.Errorf("%s has mode %v, %v; want 0600", name, info.Mode(), err)
			}
		}
		closeStore(t, s)
	}
	for _, dir := range []string{made, filepath.Dir(made), filepath.Join(given, bodiesName)} {
		if info, err := os.Stat(dir); err != nil || info.Mode() != 0o700|os.ModeDir {
			t.Errorf("%s: %v, %v; want mode 0700", dir, info.Mode(), err)
		}
	}
}
