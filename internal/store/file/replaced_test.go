package file

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Nothing is written to a directory that takes the place of the store's, not even before the
// store is looked after the next time: it may be another store. What was acknowledged is in the
// store, and there again when that is put back.
func TestNothingIsWrittenToWhatTakesItsPlace(t *testing.T) {
	for name, kind := range map[string]struct{ make, replace, putBack func(path string) error }{
		"a directory": {
			make: func(path string) error { return os.Mkdir(path, 0o700) },
			replace: func(path string) error {
				if err := os.Rename(path, path+".moved"); err != nil {
					return err
				}
				return os.Mkdir(path, 0o700)
			},
			putBack: func(path string) error {
				if err := os.RemoveAll(path); err != nil {
					return err
				}
				return os.Rename(path+".moved", path)
			},
		},
		"a link": {
			make: func(path string) error {
				if err := os.Mkdir(path+".first", 0o700); err != nil {
					return err
				}
				return os.Symlink(path+".first", path)
			},
			replace: func(path string) error {
				if err := os.Mkdir(path+".second", 0o700); err != nil {
					return err
				}
				return pointTo(path, path+".second")
			},
			putBack: func(path string) error { return pointTo(path, path+".first") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "a link" && runtime.GOOS == "windows" {
				t.Skip("links need a right of their own")
			}
			path := newPath(t)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := kind.make(path); err != nil {
				t.Fatal(err)
			}
			s, err := Open(path, zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			keepMany(t, s, 10)
			d := s.current()
			if err := kind.replace(path); err != nil {
				t.Fatal(err)
			}
			flushed := make(chan struct{})
			go func() { // for ever, if nothing is written
				_ = d.db.Flush()
				close(flushed)
			}()
			select {
			case <-d.disk.gone:
			case <-flushed:
			}
			if there, err := os.ReadDir(path); err != nil || len(there) > 0 {
				t.Errorf("in its place there is %v, %v", there, err)
			}
			if err := kind.putBack(path); err != nil {
				t.Fatal(err)
			}
			poll(t, "it is back", func() bool {
				got, err := ask(s, "0")
				return err == nil && got.Verdict == idempotency.ReplayKept
			})
			for _, name := range []string{"1", "5", "9"} {
				replays(t, s, name)
			}
		})
	}
}

// pointTo has a link lead elsewhere.
func pointTo(link, target string) error {
	if err := os.Remove(link); err != nil {
		return err
	}
	return os.Symlink(target, link)
}
