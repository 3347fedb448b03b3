package file

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// openTold opens the store at a path, with the errors that it logs.
func openTold(t *testing.T, path string) (*Store, *observer.ObservedLogs) {
	t.Helper()
	core, logged := observer.New(zap.ErrorLevel)
	s, err := Open(path, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	return s, logged
}

// A directory that is gone, or not the same any more, is noticed, and no second store is
// made in its place: its keys would all be forgotten.
func TestDirectoryThatVanishes(t *testing.T) {
	for name, vanish := range map[string]func(path string) error{
		"removed": os.RemoveAll,
		"moved":   func(path string) error { return os.Rename(path, path+".moved") },
		"replaced": func(path string) error {
			if err := os.Rename(path, path+".moved"); err != nil {
				return err
			}
			return os.Mkdir(path, 0o700)
		},
		"unlocked": func(path string) error { return os.Remove(filepath.Join(path, lockName)) }, // another process can open it
		"emptied": func(path string) error {
			files, err := os.ReadDir(path)
			for _, file := range files {
				if err == nil {
					err = os.Remove(filepath.Join(path, file.Name()))
				}
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			s, logged := openTold(t, path)
			t.Cleanup(func() { _ = s.Close() }) // it cannot be closed, only given up
			if err := keep(t.Context(), s, "a"); err != nil {
				t.Fatal(err)
			}
			if err := vanish(path); err != nil {
				t.Fatal(err)
			}
			poll(t, "it is noticed", func() bool { return logged.FilterMessageSnippet("the store failed").Len() == 1 })
			if said := logged.All()[0].ContextMap(); said["path"] != path || !strings.Contains(said["error"].(string), "removed or replaced") {
				t.Errorf("the log says %v", said)
			}
			for range 3 {
				if got, err := ask(s, "a"); err == nil || !strings.Contains(err.Error(), path) || isUnreadable(err) {
					t.Errorf("verdict %v, %v; want an error that names %s", got.Verdict, err, path)
				}
				if got, err := s.Claim(t.Context(), claimOf("b")); err == nil || got.Record != nil {
					t.Errorf("claim: %+v, %v", got, err)
				}
			}
			if name == "removed" || name == "emptied" {
				if left, _ := os.ReadDir(path); len(left) > 0 {
					t.Errorf("there is something in its place: %v", left)
				}
			}
			if name != "moved" {
				return
			}
			if err := os.Rename(path+".moved", path); err != nil {
				t.Fatal(err)
			}
			poll(t, "it is back", func() bool {
				got, err := ask(s, "a")
				return err == nil && got.Verdict == idempotency.ReplayKept
			})
			if err := keep(t.Context(), s, "afterwards"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A log that is removed under the process is noticed, and what is in it is written anew: none
// of what was acknowledged is lost.
func TestLogThatVanishes(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s, logged := openTold(t, path)
	keepMany(t, s, 10)
	logs, err := filepath.Glob(filepath.Join(path, "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("the logs are %q, %v", logs, err)
	}
	for _, log := range logs {
		if err := os.Remove(log); err != nil {
			t.Fatal(err)
		}
	}
	if err := keep(t.Context(), s, "after the removal"); err != nil {
		t.Fatal(err)
	}
	poll(t, "it is noticed, and a new log begun", func() bool {
		now, err := filepath.Glob(filepath.Join(path, "*.log"))
		return err == nil && len(now) > 0 && logged.FilterMessageSnippet("was removed").Len() > 0
	})
	if err := keep(t.Context(), s, "afterwards"); err != nil {
		t.Fatal(err)
	}
	for n := range 2 { // the one that is missing would be used again
		d := s.current()
		if _, err := unlessGone(d.disk, func() (struct{}, error) { return struct{}{}, d.db.Flush() }); err != nil {
			t.Fatal(err)
		}
		if err := keep(t.Context(), s, fmt.Sprint("more ", n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.current().disk.failed(); err != nil {
		t.Errorf("the store has failed: %v", err)
	}
	if said := logged.All()[0].ContextMap(); logged.Len() != 1 || said["path"] != path || said["file"] != filepath.Base(logs[0]) {
		t.Errorf("the log says %v", logged.All())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err = Open(path, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for _, name := range []string{"0", "9", "after the removal", "afterwards"} {
		replays(t, s, name)
	}
}

// withStack is an error as pebble makes them: written in full, it has a stack of calls.
type withStack struct{}

func (withStack) Error() string { return "the disk is gone" }

func (e withStack) Format(s fmt.State, _ rune) {
	fmt.Fprint(s, e.Error())
	if s.Flag('+') {
		fmt.Fprint(s, "\nmain.main\n\t/src/main.go:1")
	}
}

func TestErrorsAreLoggedWithoutStacks(t *testing.T) {
	core, said := observer.New(zap.ErrorLevel)
	events("/data/keys", zap.New(core)).BackgroundError(withStack{})
	want := map[string]any{"path": "/data/keys", "error": "the disk is gone"}
	if all := said.All(); len(all) != 1 || !maps.Equal(all[0].ContextMap(), want) {
		t.Errorf("logged %v", all)
	}
}
