package file

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"
)

// A database that was given up has no file open: after several of them the process could
// open none any more, and the store would never be available again.
func TestFilesOfADatabaseThatWasGivenUp(t *testing.T) {
	fails := map[string]func(op errorfs.Op) bool{
		"a flush fails": isFlush,
		"the next one does not open either": func(op errorfs.Op) bool {
			return isFlush(op) || op.Kind == errorfs.OpCreate && !strings.HasSuffix(op.Path, newLabel)
		},
	}
	for name, fails := range fails {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			first := reopen(t, path)
			keepMany(t, first, 100)
			closeStore(t, first)
			fs := newBreakable(vfs.Default)
			s := reopenIn(t, fs, path) // what was in the log is in a table now
			replays(t, s, "1")
			directory := openFilesIn(t, path)[path]
			for range 2 {
				fs.met.Store(0)
				fs.fail(func(op errorfs.Op) error {
					if fails(op) && !strings.HasSuffix(op.Path, newLabel) {
						return syscall.EIO
					}
					return nil
				})
				if _, err := s.Claim(t.Context(), counted("new")); err == nil {
					t.Fatal("a claim was taken with a disk that fails")
				}
				poll(t, "it is tried again", func() bool { return fs.met.Load() > 1 })
				fs.fail(nil)
				poll(t, "the store is available again", func() bool {
					_, err := ask(s, "1")
					return err == nil
				})
				replays(t, s, "1")
			}
			poll(t, "one database alone has files open", func() bool { return openTwice(t, path) == nil && openFilesIn(t, path)[path] <= directory })
			closeStore(t, s)
			replays(t, reopen(t, path), "2")
		})
	}
}

// A store that is closed while its disk fails has no file open, either.
func TestFilesOfAStoreThatIsClosedOnAFailedDisk(t *testing.T) {
	path := newPath(t)
	fs := newBreakable(vfs.Default)
	s, err := openIn(fs, path, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	keepMany(t, s, 10)
	fs.fail(func(op errorfs.Op) error {
		if isFlush(op) {
			return syscall.EIO
		}
		return nil
	})
	if _, err := s.Claim(t.Context(), counted("new")); err == nil {
		t.Fatal("a claim was taken with a disk that fails")
	}
	_ = s.Close() // it was given up, and says so
	poll(t, "no file is open", func() bool { return len(openFilesIn(t, path)) == 0 })
}

// openTwice returns what is open in a directory more than once, or although it was removed;
// nil if there is no such file.
func openTwice(t *testing.T, path string) map[string]int {
	t.Helper()
	open := openFilesIn(t, path)
	maps.DeleteFunc(open, func(name string, times int) bool {
		info, err := os.Stat(name)
		return err == nil && (info.IsDir() || times == 1)
	})
	if len(open) == 0 {
		return nil
	}
	return open
}

// openFilesIn returns how often this process has each file of a directory open.
func openFilesIn(t *testing.T, path string) map[string]int {
	t.Helper()
	const own = "/proc/self/fd"
	files, err := os.ReadDir(own)
	if err != nil {
		t.Skip(err)
	}
	open := make(map[string]int)
	for _, file := range files {
		if name, err := os.Readlink(filepath.Join(own, file.Name())); err == nil && strings.HasPrefix(name, path) {
			open[name]++
		}
	}
	return open
}
