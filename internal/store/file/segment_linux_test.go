package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// Who waits for room on a full disk has his segment open, also after it was swept. Its room is
// given back all the same: where it is all that can become free, he would wait for ever, and
// with him all of the store.
func TestNoRoomBesideASweptSegment(t *testing.T) {
	path := newPath(t)
	fs := newBreakable(vfs.Default)
	s := reopenIn(t, fs, path)
	brief := largeAs("a")
	brief.Retention = time.Minute
	if err := keepAs(t.Context(), s, "a", brief); err != nil {
		t.Fatal(err)
	}
	record := inFlight(t, s, "b")
	fs.failBodies(errorfs.OpFileWriteAt, syscall.ENOSPC)
	if err := s.Settle(t.Context(), key("b"), record, brief); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("settle: %v, want ErrNoSpace", err)
	}
	for minute := range time.Duration(2) { // one may have begun meanwhile
		_, _ = s.sweepBucket(bucketOf(clock().Add(minute * time.Minute)))
	}
	if files := segments(t, s); len(files) != 0 {
		t.Fatalf("the segments are %q, want none", files)
	}
	poll(t, "the room of the removed segment is given back", func() bool { return removedRoom(t, path) == 0 })
	fs.fail(nil)
	poll(t, "who waited for room has gone on", func() bool { return removedFiles(t, path) == nil })
	keepLarge(t, s, "c")
	replaysLarge(t, s, "c")
}

// removedFiles returns the files of a directory that were removed while this process has them
// open, and removedRoom how much room they take.
func removedFiles(t *testing.T, path string) (files []os.FileInfo) {
	t.Helper()
	const own = "/proc/self/fd"
	open, err := os.ReadDir(own)
	if err != nil {
		t.Skip(err)
	}
	for _, file := range open {
		at := filepath.Join(own, file.Name())
		name, err := os.Readlink(at)
		if err != nil || !strings.HasPrefix(name, path) || !strings.HasSuffix(name, " (deleted)") {
			continue
		}
		if info, err := os.Stat(at); err == nil {
			files = append(files, info)
		}
	}
	return files
}

func removedRoom(t *testing.T, path string) (bytes int64) {
	t.Helper()
	for _, file := range removedFiles(t, path) {
		bytes += file.Sys().(*syscall.Stat_t).Blocks * 512
	}
	return bytes
}
