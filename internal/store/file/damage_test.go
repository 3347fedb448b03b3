package file

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// storeOf returns the content of a file that keeps n keys.
func storeOf(t *testing.T, n int) []byte {
	t.Helper()
	path := newPath(t)
	s := reopen(t, path)
	keepMany(t, s, n)
	closeStore(t, s)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

const page = 4096

// kindOf returns the kind of a page of a file. It is 0 for a page that was never used.
func kindOf(content []byte, n int) uint16 {
	return binary.NativeEndian.Uint16(content[n*page+8:])
}

// damages are ways in which a file can be damaged.
var damages = []func(content []byte, random *rand.Rand) []byte{
	func(content []byte, random *rand.Rand) []byte { // single bytes anywhere
		for range 1 + random.IntN(8) {
			content[random.IntN(len(content))] = byte(random.Uint32())
		}
		return content
	},
	func(content []byte, random *rand.Rand) []byte { // single bits where pages describe themselves
		for range 1 + random.IntN(4) {
			content[random.IntN(len(content)/page)*page+random.IntN(48)] ^= 1 << random.IntN(8)
		}
		return content
	},
	func(content []byte, random *rand.Rand) []byte { // a sector of zeros
		clear(content[random.IntN(len(content)/512)*512:][:512])
		return content
	},
	func(content []byte, random *rand.Rand) []byte { // a copy of one page in the place of another
		from, to := random.IntN(len(content)/page), random.IntN(len(content)/page)
		copy(content[to*page:][:page], content[from*page:][:page])
		return content
	},
	func(content []byte, random *rand.Rand) []byte { // the same, but the copy has the number of its new place
		from, to := 2+random.IntN(len(content)/page-2), 2+random.IntN(len(content)/page-2)
		if kindOf(content, from) == kindOf(content, to) {
			copy(content[to*page+8:][:page-8], content[from*page+8:][:page-8])
		}
		return content
	},
	func(content []byte, random *rand.Rand) []byte { // a branch page that says it is a leaf page, or the reverse
		at := content[(2+random.IntN(len(content)/page-2))*page+8:]
		at[0] ^= branchPage ^ leafPage
		return content
	},
	func(content []byte, random *rand.Rand) []byte { // a file without its end
		return content[:random.IntN(len(content))]
	},
}

// askOnly does what [ask] does, but never writes a claim.
func askOnly(s *Store, name string) (claimed idempotency.Claimed, err error) {
	c := claimOf(name)
	c.Token = "token of a duplicate"
	err = s.read(func(t *tables) (err error) {
		claimed, _, err = t.decide(c, clock())
		return err
	})
	return claimed, err
}

// A damaged file may be refused, and its keys may be unreadable or lost. But the
// process must go on, and every response that is replayed must be the one that was
// kept.
func TestDamagedFileNeverAnswersWrongly(t *testing.T) {
	const keys, rounds = 1200, 140
	whole := storeOf(t, keys)
	path := filepath.Join(t.TempDir(), "keys.db")
	random := rand.New(rand.NewPCG(11, 12))
	var refused, broken, unreadable, replayed int
	for round := range rounds {
		content := damages[round%len(damages)](bytes.Clone(whole), random)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(path, zap.NewNop())
		if err != nil {
			refused++
			after, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(after, content) {
				t.Errorf("round %d: a file that was refused was changed", round)
			}
			continue
		}
		fresh := 0
		for i := range keys {
			name := fmt.Sprint(i)
			asking := ask
			if fresh == 5 { // every write waits for the disk, so there are only 5
				asking = askOnly
			}
			claimed, err := asking(s, name)
			switch {
			case isUnreadable(err):
				unreadable++
			case err != nil:
				t.Errorf("round %d: key %s: %v", round, name, err)
			case claimed.Verdict == idempotency.ReplayKept:
				replayed++
				response := claimed.Response
				if response.Status != 201 || string(response.Body) != name || len(response.Header) != 1 || response.Header["Etag"][0] != name {
					t.Fatalf("round %d: key %s was answered %+v", round, name, response)
				}
			case claimed.Verdict == idempotency.Proceed:
				fresh = min(fresh+1, 5)
			case claimed.Verdict != idempotency.WaitForRun: // an old page can show a run as in flight
				t.Fatalf("round %d: key %s: verdict %v", round, name, claimed.Verdict)
			}
		}
		for cursor, more := "", true; more; more = cursor != "" {
			if _, cursor, err = s.List(t.Context(), cursor, 100); err != nil && !isUnreadable(err) {
				t.Errorf("round %d: list: %v", round, err)
			}
		}
		if err := s.Forget(t.Context(), key("1")); err != nil && !isUnreadable(err) {
			t.Errorf("round %d: forget: %v", round, err)
		}
		if err := s.sweepDue(); err != nil && !isUnreadable(err) {
			t.Errorf("round %d: sweep: %v", round, err)
		}
		if s.broken.Load() != nil || s.brokenWrites.Load() != nil {
			broken++
		}
		if err := s.Close(); err != nil {
			t.Errorf("round %d: close: %v", round, err)
		}
	}
	t.Logf("of %d files %d were refused, %d broke off; %d answers, %d unreadable", rounds, refused, broken, replayed, unreadable)
	if refused == 0 || unreadable == 0 || replayed == 0 {
		t.Errorf("the damage was of one kind only: %d refused, %d unreadable, %d answers", refused, unreadable, replayed)
	}
}

// With a branch that leads back to itself, bbolt would overflow the stack, and that
// ends the process.
func TestBranchThatLeadsBackIsRefused(t *testing.T) {
	content := storeOf(t, 600)
	branches := 0
	for n := 2; n < len(content)/page; n++ {
		if kindOf(content, n) != branchPage {
			continue
		}
		branches++
		damaged := bytes.Clone(content)
		count := int(binary.NativeEndian.Uint16(damaged[n*page+10:]))
		last := n*page + pageHeaderSize + (count-1)*elementSize + 8
		binary.NativeEndian.PutUint64(damaged[last:], uint64(n))
		path := filepath.Join(t.TempDir(), "keys.db")
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(path, zap.NewNop())
		if err != nil {
			continue
		}
		// This branch page is free, and so nothing leads to it.
		for i := range 600 {
			kept(t, s, fmt.Sprint(i))
		}
		closeStore(t, s)
		branches--
	}
	if branches == 0 {
		t.Error("no branch in use was found")
	}
}

func TestFileCutOffWhileOpen(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	keepMany(t, s, 300)
	if err := os.Truncate(path, 2*page); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		if claimed, err := ask(s, fmt.Sprint(i)); !isUnreadable(err) {
			t.Fatalf("claim: verdict %v, %v; want an UnreadableError", claimed.Verdict, err)
		}
	}
	if err := s.Renew(t.Context(), claimOf("1")); !isUnreadable(err) {
		t.Errorf("renew: %v, want an UnreadableError", err)
	}
}

// Only writes meet this damage. The committer must go on, and an operation that does
// not need the damaged page must succeed.
func TestDamageMetByTheCommitter(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	keepMany(t, s, 300)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := 0
	for n := 2; n < len(content)/page; n++ {
		size := binary.NativeEndian.Uint32(content[n*page+pageHeaderSize+8:]) // of the first key
		if kindOf(content, n) == leafPage && size >= momentSize+1+uint32(keySize) && bytes.Contains(content[n*page:][:page], marker) {
			damaged++
			if _, err := file.WriteAt([]byte{0xff}, int64(n*page+8)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if damaged == 0 {
		t.Fatal("no page of the expiries was found")
	}
	b := block(s)
	<-b.entered
	first := claimUntil(t.Context(), s, "new")
	poll(t, "the claim is queued", func() bool { return len(s.queue) == 1 })
	// This operation is in the same group, and does not need the damaged page.
	gone := make(chan error, 1)
	go func() { gone <- s.Renew(t.Context(), claimOf("nobody's")) }()
	poll(t, "both are queued", func() bool { return len(s.queue) == 2 })
	b.letGo(t)
	if r := <-first; !isUnreadable(r.err) {
		t.Errorf("claim: verdict %v, %v; want an UnreadableError", r.claimed.Verdict, r.err)
	}
	if err := <-gone; !errors.Is(err, idempotency.ErrGone) {
		t.Errorf("renew beside it: %v, want ErrGone", err)
	}
}

// If a page in use is listed as free, bbolt would overwrite it.
func TestFreePageInUseIsRefused(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	keepMany(t, s, 600)
	var used uint64
	if err := s.read(func(t *tables) error { used = uint64(t.records.Root()); return nil }); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, list, _, err := (&structure{file: bytes.NewReader(content), pageSize: page}).readMeta()
	if err != nil {
		t.Fatal(err)
	}
	at := int(list) * page
	if count := binary.NativeEndian.Uint16(content[at+10:]); count == 0 {
		t.Fatal("no page is free")
	}
	binary.NativeEndian.PutUint64(content[at+pageHeaderSize:], used)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, path, "damaged", fmt.Sprintf("page %d is referred to twice", used))
}

func TestDamagedMetaPageIsReported(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	keepMany(t, s, 20)
	closeStore(t, s)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		damaged := bytes.Clone(content)
		damaged[n*page+pageHeaderSize+20] ^= 1
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		core, logs := observer.New(zap.WarnLevel)
		s, err := Open(path, zap.New(core))
		if err != nil {
			t.Fatalf("meta page %d: %v", n, err)
		}
		closeStore(t, s)
		if logs.FilterMessageSnippet("meta pages is damaged").Len() != 1 {
			t.Errorf("meta page %d: the loss was not reported", n)
		}
	}
	content[pageHeaderSize+20] ^= 1
	content[page+pageHeaderSize+20] ^= 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, path, "damaged", "neither of its two meta pages is whole", "left as it is")
}
