package file

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"
)

func init() { children["opener"] = keepOpen }

// keepOpen opens the store, says so, and closes it when its input ends.
func keepOpen(path string) error {
	s, err := Open(path, zap.NewNop())
	if err != nil {
		return err
	}
	fmt.Println("open")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return s.Close()
}

// contents returns what is at a path and below it, but for the locked file: a process
// that opens and closes that lets go of its own lock.
func contents(t *testing.T, path string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(path, func(name string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || entry.Name() == lockName {
			return err
		}
		content, err := os.ReadFile(name)
		found[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// refused fails the test if the store can be opened, if one of the texts is not in the
// error, or if anything was changed.
func refused(t *testing.T, path string, says ...string) {
	t.Helper()
	before := contents(t, path)
	s, err := Open(path, zap.NewNop())
	if err == nil {
		s.Close()
		t.Fatal("it was opened")
	}
	for _, text := range append(says, path) {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error %q does not say %q", err, text)
		}
	}
	if after := contents(t, path); !maps.Equal(before, after) {
		t.Errorf("it was changed: %d files before, %d after", len(before), len(after))
	}
}

func TestStoreOfAnotherProcessIsRefused(t *testing.T) {
	path := newPath(t)
	cmd, in, out := startChild(t, "opener", path)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatalf("the child said %q, %v", line, err)
	}
	note := filepath.Join(path, holderName)
	refused(t, path, fmt.Sprintf("in use by process %d:", cmd.Process.Pid), "path of its own", "store redis")

	for text, says := range map[string]string{
		"4194304 " + hostname(t) + "\n": "in use by another process:", // there is no process with such a number
		"7 another-host\n":              "in use by process 7 on host another-host:",
		"nonsense":                      "in use by another process:",
	} {
		if err := os.WriteFile(note, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, path, says)
	}
	if err := os.Remove(note); err != nil {
		t.Fatal(err)
	}
	refused(t, path, "in use by another process:")

	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	reopen(t, path)
}

func hostname(t *testing.T) string {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return host
}

func TestStoreOfThisProcessIsRefused(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	refused(t, path, fmt.Sprintf("in use by this process itself (%d):", os.Getpid()))
	// The same directory by another path.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Skip("no symbolic links here:", err)
	}
	refused(t, link, fmt.Sprintf("in use by this process itself (%d):", os.Getpid()))
	cmd := child(t, "opener", path)
	cmd.Stderr = nil
	if cmd.Run() == nil {
		t.Error("after that, another process could open it")
	}
	closeStore(t, s)
	if _, err := os.Stat(filepath.Join(path, holderName)); !os.IsNotExist(err) {
		t.Errorf("a closed store is still noted as open: %v", err)
	}
	reopen(t, path)
}

// boltFile begins as a file of bbolt does.
func boltFile() []byte {
	content := make([]byte, 8192)
	binary.NativeEndian.PutUint32(content[16:], 0xED0CDAED)
	return content
}

func TestFileInTheStoresPlaceIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		content []byte
		says    string
	}{
		"nothing": {nil, "is a file, and a store is a directory"},
		"text":    {bytes.Repeat([]byte("some other file\n"), 1000), "is a file, and a store is a directory"},
		"bbolt":   {boltFile(), "bbolt"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keys")
			if err := os.WriteFile(path, test.content, 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, path, test.says, "left as it is", "another path")
		})
	}
}

// An earlier version kept its keys in a file beside: whoever comes from it must not find
// all keys forgotten.
func TestFileOfAnEarlierVersionIsRefused(t *testing.T) {
	path := newPath(t)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".db", boltFile(), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(path, zap.NewNop()); err == nil {
		s.Close()
		t.Fatal("it was opened")
	} else if !strings.Contains(err.Error(), path+".db") || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("the error is %v", err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("a directory was made all the same: %v", err)
	}
	if err := os.WriteFile(path+".db", []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	reopen(t, path)
}

func TestForeignDirectoryIsRefused(t *testing.T) {
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "letter.txt"), []byte("Dear Sir"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, path, "no store of caddy-dedup", "letter.txt", "left as it is", "another path")
	if _, err := os.Stat(filepath.Join(path, lockName)); !os.IsNotExist(err) {
		t.Errorf("a lock was left in it: %v", err)
	}
}

// The database of another program, which uses pebble too.
func TestForeignDatabaseIsRefused(t *testing.T) {
	path := newPath(t)
	closeStore(t, reopen(t, path))
	if err := os.Remove(filepath.Join(path, labelName)); err != nil {
		t.Fatal(err)
	}
	refused(t, path, "no store of caddy-dedup", "left as it is")
}

func TestOtherFormatIsRefused(t *testing.T) {
	path := newPath(t)
	closeStore(t, reopen(t, path))
	for text, says := range map[string]string{
		format + "2\n": `has format "2", and this version reads format "1"`,
		"":             "damaged",
		"a letter":     "damaged",
	} {
		if err := os.WriteFile(filepath.Join(path, labelName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, path, says, "left as it is")
	}
}

// A store that has lost a file is damaged, and nothing is begun anew in its place.
func TestStoreThatLostAFileIsRefused(t *testing.T) {
	whole := newPath(t)
	s := reopen(t, whole)
	keepMany(t, s, 100)
	if err := s.database.db.Flush(); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	lost := 0
	for name := range contents(t, whole) {
		base := filepath.Base(name)
		isTable := strings.HasSuffix(base, ".sst") || strings.HasSuffix(base, ".blob")
		if !isTable && !strings.HasPrefix(base, "MANIFEST") && !strings.HasPrefix(base, "marker.manifest") {
			continue
		}
		path := newPath(t)
		if err := os.CopyFS(path, os.DirFS(whole)); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(path, base)); err != nil {
			t.Fatal(err)
		}
		lost++
		says := []string{"damaged", "left as it is"}
		switch number, _, _ := strings.Cut(base, "."); {
		case isTable:
			says = append(says, "file "+number)
		case number == "marker":
			says = append(says, "file marker.manifest")
		default:
			says = append(says, base)
		}
		t.Run(base, func(t *testing.T) { refused(t, path, says...) })
	}
	if lost < 3 {
		t.Errorf("only %d kinds of files were tried", lost)
	}
}

func TestUnusablePath(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"below a file":        filepath.Join(dir, "a file", "keys"),
		"directory is a file": filepath.Join(dir, "a file", "more", "keys"),
	} {
		if s, err := Open(path, zap.NewNop()); err == nil {
			s.Close()
			t.Errorf("%s: it was opened", name)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: the error %q does not name %s", name, err, path)
		}
	}
}

// countingOpen counts the files that are open by a name.
type countingOpen struct {
	vfs.FS
	name string
	open atomic.Int64
}

func (c *countingOpen) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := c.FS.Create(name, category)
	if err != nil || c.PathBase(name) != c.name {
		return f, err
	}
	c.open.Add(1)
	return &countedFile{f, c}, nil
}

type countedFile struct {
	vfs.File
	of *countingOpen
}

func (f *countedFile) Close() error {
	f.of.open.Add(-1)
	return f.File.Close()
}

// A database that cannot be opened leaves no file open: it is tried again and again.
func TestOpenThatFailsClosesItsSlots(t *testing.T) {
	breakable := newBreakable(newMemory())
	fs := &countingOpen{FS: breakable, name: claimsName}
	s := reopenIn(t, fs, "/data/keys")
	keepMany(t, s, 1)
	logger := s.logger
	closeStore(t, s)
	var made atomic.Bool
	breakable.fail(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, claimsName) {
			made.Store(true)
		}
		if made.Load() && op.Kind == errorfs.OpOpenDir {
			return syscall.EIO
		}
		return nil
	})
	if s, err := openIn(fs, "/data/keys", logger); !errors.Is(err, syscall.EIO) {
		t.Errorf("opened in spite of a directory that cannot be flushed: %v", err)
		if err == nil {
			closeStore(t, s)
		}
	}
	breakable.fail(nil)
	if n := fs.open.Load(); n != 0 || !made.Load() {
		t.Errorf("%d files of slots are still open; one was made: %v", n, made.Load())
	}
	closeStore(t, reopenIn(t, fs, "/data/keys"))
}
