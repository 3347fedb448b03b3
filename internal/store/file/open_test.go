package file

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
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

// refused fails the test if the file can be opened, if one of the texts is not in the
// error, or if the file was changed.
func refused(t *testing.T, path string, says ...string) {
	t.Helper()
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
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
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("the file was changed")
	}
}

func TestFileOfAnotherProcessIsRefused(t *testing.T) {
	path := newPath(t)
	cmd := child(t, "opener", path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatalf("the child said %q, %v", line, err)
	}
	refused(t, path, fmt.Sprintf("in use by process %d:", cmd.Process.Pid), "path of its own", "store redis")

	if err := os.WriteFile(holderPath(path), []byte("4194304 "+hostname(t)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, path, "in use by another process:") // there is no process with such a number
	if err := os.WriteFile(holderPath(path), []byte("7 another-host\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, path, "in use by process 7 on host another-host:")
	if err := os.WriteFile(holderPath(path), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, path, "in use by another process:")
	if err := os.Remove(holderPath(path)); err != nil {
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

func TestFileOfThisProcessIsRefused(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	refused(t, path, fmt.Sprintf("in use by this process itself (%d):", os.Getpid()))
	closeStore(t, s)
	if _, err := os.Stat(holderPath(path)); !os.IsNotExist(err) {
		t.Errorf("a closed store is still noted as open: %v", err)
	}
	reopen(t, path)
}

func TestForeignFileIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		content []byte
		says    string
	}{
		"one byte":     {[]byte("x"), "has 1 bytes, too few"},
		"text":         {bytes.Repeat([]byte("some other file\n"), 10_000), "no store of caddy-dedup"},
		"zeros":        {make([]byte, 64<<10), "no store of caddy-dedup"},
		"sqlite":       {append([]byte("SQLite format 3\x00"), make([]byte, 8192)...), "no store of caddy-dedup"},
		"a short text": {bytes.Repeat([]byte("x"), 5000), "has 5000 bytes, too few"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keys.db")
			if err := os.WriteFile(path, test.content, 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, path, test.says, "left as it is", "another path")
		})
	}
}

func TestForeignDatabaseIsRefused(t *testing.T) {
	for name, options := range map[string]*bolt.Options{
		"with a list of free pages":    nil,
		"without a list of free pages": {NoFreelistSync: true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keys.db")
			db, err := bolt.Open(path, 0o600, options)
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Update(func(tx *bolt.Tx) error {
				_, err := tx.CreateBucket(recordsBucket)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			refused(t, path, "of another program", "left as it is")
		})
	}
}

func TestOtherLayoutIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(tx *bolt.Tx) error
		says   string
	}{
		"a newer format": {
			func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put(formatKey, []byte("2")) },
			`has format "2", and this version reads format "1"`,
		},
		"no format": {
			func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Delete(formatKey) },
			`has format ""`,
		},
		"a missing table": {
			func(tx *bolt.Tx) error { return tx.DeleteBucket(responsesBucket) },
			"damaged: one of its tables is missing",
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			closeStore(t, reopen(t, path))
			tamper(t, path, test.change)
			refused(t, path, test.says, "left as it is")
		})
	}
}

func TestCutOffFileIsRefused(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	keepMany(t, s, 300)
	closeStore(t, s)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var used int
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.View(func(tx *bolt.Tx) error { used = int(tx.Size()); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for size, says := range map[int]string{
		used - 1:    "cut off",
		used / 2:    "damaged",
		3 * 4096:    "damaged",
		2*4096 - 1:  "damaged",
		4096:        "damaged",
		4096 - 1:    "left as it is",
		4096 + 2048: "damaged",
	} {
		if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, path, says, "left as it is")
	}
	if err := os.WriteFile(path, whole[:used], 0o600); err != nil {
		t.Fatal(err)
	}
	kept(t, reopen(t, path), "7")
}

func TestUnusablePath(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"a directory":         dir,
		"below a file":        filepath.Join(dir, "a file", "keys.db"),
		"directory is a file": filepath.Join(dir, "a file", "more", "keys.db"),
	} {
		if s, err := Open(path, zap.NewNop()); err == nil {
			s.Close()
			t.Errorf("%s: it was opened", name)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: the error %q does not name %s", name, err, path)
		}
	}
}

func TestUninitialisedDatabaseIsInitialised(t *testing.T) {
	// This is what is left if the first process is killed before its first
	// transaction.
	path := filepath.Join(t.TempDir(), "keys.db")
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := keep(context.Background(), reopen(t, path), "a"); err != nil {
		t.Fatal(err)
	}
}
