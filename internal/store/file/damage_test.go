package file

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// storeOf returns the files of a store that keeps n keys: most of them in tables, some
// only in the log, as a process leaves them that is killed.
func storeOf(t *testing.T, n int) map[string]string {
	t.Helper()
	path := newPath(t)
	s := reopen(t, path)
	keepMany(t, s, n*3/4)
	if err := s.database.db.Flush(); err != nil {
		t.Fatal(err)
	}
	keepFrom(t, s, n*3/4, n)
	files := make(map[string]string)
	for name, content := range contents(t, path) {
		if base := filepath.Base(name); base != holderName {
			files[base] = content
		}
	}
	return files
}

// damages are ways in which a file can be damaged.
var damages = []func(content []byte, random *rand.Rand) []byte{
	func(content []byte, random *rand.Rand) []byte { // single bits anywhere
		for range 1 + random.IntN(4) {
			content[random.IntN(len(content))] ^= 1 << random.IntN(8)
		}
		return content
	},
	func(content []byte, random *rand.Rand) []byte { // single bytes near the end, where tables describe themselves
		at := max(0, len(content)-200)
		content[at+random.IntN(len(content)-at)] ^= byte(1 + random.IntN(255))
		return content
	},
	func(content []byte, random *rand.Rand) []byte { // a sector of zeros
		at := random.IntN(len(content))
		clear(content[at:min(len(content), at+512)])
		return content
	},
	func(content []byte, random *rand.Rand) []byte { // one part in the place of another
		from, to := random.IntN(len(content)), random.IntN(len(content))
		copy(content[to:], content[from:min(len(content), from+4096)])
		return content
	},
	func(content []byte, random *rand.Rand) []byte { // a file without its end
		return content[:random.IntN(len(content))]
	},
}

// A damaged store may be refused, and its keys may be unreadable. But the process must
// go on, every response that is replayed must be the one that was kept, and no key that
// was kept may run again.
func TestDamagedStoreNeverAnswersWrongly(t *testing.T) {
	const keys, rounds = 1200, 120
	whole := storeOf(t, keys)
	var kinds []string
	for name, content := range whole {
		if len(content) > 0 && name != labelName && name != markName {
			kinds = append(kinds, name)
		}
	}
	slices.Sort(kinds)
	random := rand.New(rand.NewPCG(11, 12))
	var refused, unreadable, replayed int
	for round := range rounds {
		path := t.TempDir()
		hit := kinds[round%len(kinds)]
		how := random.IntN(len(damages))
		for name, content := range whole {
			if name == hit {
				content = string(damages[how]([]byte(content), random))
			}
			if err := os.WriteFile(filepath.Join(path, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		before := contents(t, path)
		s, err := Open(path, zap.NewNop())
		if err != nil {
			refused++
			if !strings.Contains(err.Error(), path) {
				t.Errorf("round %d: the error does not name the directory: %v", round, err)
			}
			if !strings.Contains(err.Error(), hit) {
				t.Errorf("round %d: the error does not name the file %s: %v", round, hit, err)
			}
			if !maps.Equal(contents(t, path), before) {
				t.Errorf("round %d: a store that was refused was changed", round)
			}
			continue
		}
		fresh := 0
		for i := range keys {
			name := fmt.Sprint(i)
			claimed, err := askOnly(s, name)
			switch {
			case isUnreadable(err):
				unreadable++
			case err != nil:
				t.Errorf("round %d, %s: key %s: %v", round, hit, name, err)
			case claimed.Verdict == idempotency.ReplayKept:
				replayed++
				response := claimed.Response
				if response.Status != 201 || string(response.Body) != name || len(response.Header) != 1 || response.Header["Etag"][0] != name {
					t.Fatalf("round %d, %s: key %s was answered %+v", round, hit, name, response)
				}
			case claimed.Verdict == idempotency.Proceed:
				fresh++
			default:
				t.Fatalf("round %d, %s: key %s: verdict %v", round, hit, name, claimed.Verdict)
			}
		}
		if fresh > 0 {
			t.Errorf("round %d: with a damaged %s, %d keys are forgotten", round, hit, fresh)
		}
		for cursor, more := "", true; more; more = cursor != "" {
			if _, cursor, err = s.List(t.Context(), cursor, 100); err != nil && !isUnreadable(err) {
				t.Errorf("round %d: list: %v", round, err)
			}
		}
		if err := s.Forget(t.Context(), key("1"), idempotency.Seen{}); err != nil && !isUnreadable(err) {
			t.Errorf("round %d: forget: %v", round, err)
		}
		if err := keep(t.Context(), s, fmt.Sprint("new ", round)); err != nil && !isUnreadable(err) {
			t.Errorf("round %d: %v", round, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("round %d: close: %v", round, err)
		}
	}
	t.Logf("of %d stores %d were refused; %d answers, %d unreadable", rounds, refused, replayed, unreadable)
	if refused == 0 || unreadable == 0 || replayed == 0 {
		t.Errorf("the damage was of one kind only: %d refused, %d unreadable, %d answers", refused, unreadable, replayed)
	}
}

// A table that is damaged while the store runs, and that is merged with others in the
// background: the process goes on, and the keys of the other tables are known.
func TestTableDamagedWhileOpen(t *testing.T) {
	path := newPath(t)
	s, err := Open(path, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	keepMany(t, s, 300)
	if err := s.database.db.Flush(); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(path, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("tables: %v, %v", tables, err)
	}
	for _, table := range tables {
		content, err := os.ReadFile(table)
		if err != nil {
			t.Fatal(err)
		}
		for i := range len(content) / 2 {
			content[i] ^= 0xff
		}
		if err := os.WriteFile(table, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	unreadable := 0
	for i := range 300 {
		if claimed, err := ask(s, fmt.Sprint(i)); isUnreadable(err) {
			unreadable++
		} else if err != nil || claimed.Verdict != idempotency.ReplayKept {
			t.Fatalf("key %d: verdict %v, %v", i, claimed.Verdict, err)
		}
	}
	if unreadable == 0 {
		t.Error("no key was met that cannot be read")
	}
	_ = s.database.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)
	kept := 0
	for i := range 200 {
		// Of a key that may be in a damaged block nobody knows whether it is new. The store's
		// own filter may say that it is, and later a table's, which also depends on the times
		// in that, that it may not be: then its record is not found behind the damage.
		name := fmt.Sprint("afterwards ", i)
		if err := keep(t.Context(), s, name); isUnreadable(err) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		if claimed, err := ask(s, name); isUnreadable(err) {
			continue
		} else if err != nil || claimed.Verdict != idempotency.ReplayKept || string(claimed.Response.Body) != name {
			t.Fatalf("key %s: verdict %v, response %v, %v", name, claimed.Verdict, claimed.Response, err)
		}
		kept++
	}
	if kept == 0 {
		t.Error("no new key can be kept")
	}
}

// A page of a list is whole or an error, also where claims in slots come behind a place that
// cannot be read.
func TestListWithAPlaceThatCannotBeRead(t *testing.T) {
	fs := newBreakable(newMemory())
	s := reopenIn(t, fs, "/data/keys")
	const keys, open = 3000, 50
	keepMany(t, s, keys)
	if err := s.database.db.Flush(); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	s = reopenIn(t, fs, "/data/keys")
	for i := range open {
		claims(t, s, claimOf(fmt.Sprint("open ", i)))
	}
	reads, bad := 0, int64(-1)
	fs.fail(func(op errorfs.Op) error {
		if op.Kind != errorfs.OpFileReadAt || !strings.HasSuffix(op.Path, ".sst") {
			return nil
		}
		if reads++; reads == 12 {
			bad = op.Offset
		}
		if op.Offset == bad {
			return syscall.EIO
		}
		return nil
	})
	listed := 0
	for cursor, more := "", true; more; more = cursor != "" {
		page, next, err := s.List(t.Context(), cursor, 1000)
		if err != nil {
			return
		}
		listed, cursor = listed+len(page), next
	}
	t.Errorf("%d of %d keys are listed, without an error", listed, keys+open)
}

// A flush takes with it what there is of a record that is being written. If the process is
// killed then, the log ends within that record, and nothing is damaged: it was acknowledged to
// nobody. What ends before the place up to which it was flushed is.
func TestLogThatWasFlushedWithinARecord(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	keepMany(t, s, 20)
	claimed, err := s.Claim(t.Context(), claimOf("large"))
	if err != nil {
		t.Fatal(err)
	}
	settlement := completeAs("large")
	settlement.Response.Body = []byte(strings.Repeat("x", largeBytes-1))
	before := sizeOfLog(contents(t, path))
	if err := s.Settle(t.Context(), key("large"), claimed.Record, settlement); err != nil {
		t.Fatal(err)
	}
	files := contents(t, path)
	const block = 32 << 10
	tried := 0
	for cut := (before/block + 1) * block; cut < sizeOfLog(files); cut += block {
		for lost, sound := range map[int]bool{0: true, 100: false} {
			tried++
			copied := newPath(t)
			if err := os.MkdirAll(copied, 0o700); err != nil {
				t.Fatal(err)
			}
			for name, content := range files {
				base := filepath.Base(name)
				if number, ok := logNumber(base); ok && len(content) == sizeOfLog(files) {
					content = content[:cut-lost]
					mark := openMark(vfs.Default, copied)
					mark.setLog(number, uint64(cut))
					mark.close()
				}
				if base == markName || base == holderName {
					continue
				}
				if err := os.WriteFile(filepath.Join(copied, base), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			again, err := Open(copied, zap.NewNop())
			if (err == nil) != sound {
				t.Errorf("cut at %d, without the last %d bytes: %v", cut, lost, err)
			}
			if err != nil {
				continue
			}
			for i := range 20 {
				replays(t, again, fmt.Sprint(i))
			}
			closeStore(t, again)
		}
	}
	if tried < 6 {
		t.Errorf("the log was cut %d times", tried)
	}
}

// sizeOfLog returns the size of the largest log among the files of a store.
func sizeOfLog(files map[string]string) (size int) {
	for name, content := range files {
		if _, ok := logNumber(filepath.Base(name)); ok {
			size = max(size, len(content))
		}
	}
	return size
}
