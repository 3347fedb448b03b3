package file

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// volume is a disk of some size.
type volume struct {
	hooked
	size uint64

	mu    sync.Mutex
	taken uint64 // by others
}

func volumeOf(size uint64) *volume {
	v := &volume{size: size}
	v.hooked = hooked{newMemory(), func(_ string, _ int64, n int) (int, error) {
		if usage, _ := v.GetDiskUsage("/"); usage.AvailBytes < uint64(n) {
			return 0, syscall.ENOSPC
		}
		return n, nil
	}}
	return v
}

// used returns the bytes of all files.
func (v *volume) used(name string) (bytes uint64) {
	names, err := v.FS.List(name)
	if info, statErr := v.FS.Stat(name); err != nil || statErr != nil || !info.IsDir() {
		if statErr == nil {
			bytes = uint64(info.Size())
		}
		return bytes
	}
	for _, inner := range names {
		bytes += v.used(v.FS.PathJoin(name, inner))
	}
	return bytes
}

func (v *volume) GetDiskUsage(string) (vfs.DiskUsage, error) {
	used := v.used("/")
	v.mu.Lock()
	defer v.mu.Unlock()
	if used += v.taken; used > v.size {
		used = v.size
	}
	return vfs.DiskUsage{TotalBytes: v.size, UsedBytes: used, AvailBytes: v.size - used}, nil
}

// take makes others use all free space except so many bytes.
func (v *volume) take(but uint64) {
	v.mu.Lock()
	v.taken = 0
	v.mu.Unlock()
	usage, _ := v.GetDiskUsage("/")
	v.mu.Lock()
	defer v.mu.Unlock()
	v.taken = usage.AvailBytes - min(but, usage.AvailBytes)
}

// fill keeps responses until the store refuses one for lack of space, and returns how many it has kept.
func fill(t *testing.T, s *Store, body string) int {
	t.Helper()
	for i := 0; ; i++ {
		err := keepAs(t.Context(), s, fmt.Sprint(i), completeAs(body))
		if errors.Is(err, errNoSpace) {
			return i
		}
		if err != nil || i == 1e6 {
			t.Fatalf("response %d: %v", i, err)
		}
	}
}

// Expired bodies are removed while the database cannot be opened, so a disk that is full of them
// recovers by itself. The failed attempts to open leave no open file.
func TestOpenOnADiskFullOfExpiredBodies(t *testing.T) {
	for _, expired := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			fs := volumeOf(4 * maxReservedSpace)
			counted := &handles{FS: fs}
			s := openStore(t, counted, storePath)
			record := claimed(t, s, claimOf("long"))
			long := completeAs("long")
			long.Retention = 24 * time.Hour
			must(t, s.Settle(t.Context(), key("long"), record, long))
			fill(t, s, string(make([]byte, 8<<20)))
			closeStore(t, s)
			fs.take(0)
			life := time.Hour + bucketInterval
			if expired {
				time.Sleep(life)
			}
			s = openStore(t, counted, storePath)
			if !expired {
				time.Sleep(life - time.Minute)
				wantErr(t, storetest.ErrOf(ask(t.Context(), s, "long")), syscall.ENOSPC)
				if n := counted.open.Load(); n > 1 {
					t.Errorf("%d files are open", n)
				}
				time.Sleep(time.Minute)
			}
			time.Sleep(bodyLateness)
			replays(t, s, "long", "long")
			time.Sleep(fullTimeout)
			keep(t, s, 1000, 1010)
		})
	}
}

// The database is not opened on a disk without space for what opening writes, and nothing is left on
// the disk. As soon as there is space, the store is available.
func TestOpenOnADiskWithLittleRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := volumeOf(1 << 30)
		s := openStore(t, fs, storePath)
		keep(t, s, 0, 5000)
		closeStore(t, s)
		fs.take(memTableBytes + 100<<10) // less than the size of the log
		used := fs.used("/")
		s = openStore(t, fs, storePath)
		time.Sleep(time.Minute)
		if got, err := ask(t.Context(), s, "1"); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("a claim: %v, %v; want ENOSPC", got.Verdict, err)
		}
		if now := fs.used("/"); now > used+1<<10 {
			t.Errorf("%d bytes were left on the disk", now-used)
		}
		fs.take(2 * maxReservedSpace)
		time.Sleep(2 * probeInterval)
		synctest.Wait()
		replaysAll(t, s, 0, 5000)
		time.Sleep(fullTimeout)
		keep(t, s, 5000, 5010)
	})
}

// New keys leave space for runs in flight and for the sweeper, so the store recovers by itself when
// the kept responses have expired.
func TestNewKeysLeaveSpaceForRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := volumeOf(4 * maxReservedSpace)
		s := openStore(t, fs, storePath)
		body := string(make([]byte, maxInlineBody))
		running := claimed(t, s, claimOf("running"))
		fs.take(maxReservedSpace + 1<<20)
		for i := 0; ; i++ {
			err := keepAs(t.Context(), s, fmt.Sprint(i), completeAs(body))
			if errors.Is(err, errNoSpace) {
				break
			}
			if err != nil || i > 1000 {
				t.Fatalf("response %d: %v", i, err)
			}
			time.Sleep(bodySweepInterval / 2)
		}
		wantErr(t, s.Settle(t.Context(), key("running"), running, completeAs(body)), nil)
		wantErr(t, s.Forget(t.Context(), key("0"), idempotency.Precondition{}), nil)
		fs.take(maxReservedSpace + 1<<20)
		time.Sleep(fullTimeout + bodySweepInterval)
		keep(t, s, 2000, 2010)
	})
}

// A store on a small volume reserves a quarter of it, before and after a restart, and its error says
// so.
func TestSmallVolume(t *testing.T) {
	for _, size := range []uint64{32 << 20, 64 << 20} {
		synctest.Test(t, func(t *testing.T) {
			fs := volumeOf(size)
			s := openStore(t, fs, storePath)
			keep(t, s, 1000, 1010)
			if kept := fill(t, s, string(make([]byte, 1<<20))); kept < int(size>>22) {
				t.Errorf("%d MiB fit into %d", kept, size>>20)
			}
			closeStore(t, s)
			s = openStore(t, fs, storePath)
			replaysAll(t, s, 1000, 1010)
			fs.take(size / 8)
			time.Sleep(bodySweepInterval)
			synctest.Wait()
			want := fmt.Sprintf("%d MiB are free, of which the store leaves %d", size>>23, size>>22)
			if _, err := ask(t.Context(), s, "new"); !errors.Is(err, errNoSpace) || !strings.Contains(err.Error(), want) {
				t.Errorf("a new key: %v, want %q", err, want)
			}
		})
	}
}

// A body that is larger than the disk is too large: if it waited for space, the store would refuse new
// keys in vain.
func TestBodyLargerThanTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, volumeOf(16<<20), storePath)
		err := keepAs(t.Context(), s, "large", completeAs(string(make([]byte, 16<<20))))
		if !errors.Is(err, idempotency.ErrTooLarge) {
			t.Errorf("%v, want ErrTooLarge", err)
		}
		keep(t, s, 0, 10)
	})
}

// unmeasured is a disk that reports a size of 0, as some network file systems do.
type unmeasured struct{ vfs.FS }

func (unmeasured) GetDiskUsage(string) (vfs.DiskUsage, error) { return vfs.DiskUsage{}, nil }

func TestDiskOfUnknownSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := unmeasured{newMemory()}
		for i := range 2 {
			s := openStore(t, fs, storePath)
			synctest.Wait()
			keep(t, s, 10*i, 10*i+10)
			wantErr(t, keepAs(t.Context(), s, fmt.Sprint("large ", i), completeAs(largeText("large"))), nil)
			closeStore(t, s)
		}
	})
}
