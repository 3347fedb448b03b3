package caddymodule

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"
)

// A path and its links are one store.
func TestRealPath(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(elements ...string) string { return filepath.Join(append([]string{dir}, elements...)...) }
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, name); err != nil {
			t.Skip("no symbolic links here:", err)
		}
	}
	for _, made := range []string{"data", "other"} {
		if err := os.Mkdir(at(made), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(at("data", "dedup"), 0o700); err != nil {
		t.Fatal(err)
	}
	link(at("data"), at("current"))
	link("data", at("relative"))
	link(at("data", "dedup"), at("other", "linked"))
	for path, want := range map[string]string{
		at("data", "dedup"):                   at("data", "dedup"),
		at("current", "dedup"):                at("data", "dedup"),
		at("relative", "dedup"):               at("data", "dedup"),
		at("other", "linked"):                 at("data", "dedup"),
		at("current", "not", "there", "x"):    at("data", "not", "there", "x"),
		at("other", "..", "current", "dedup"): at("data", "dedup"),
	} {
		one, two := &FileStore{Path: path}, &FileStore{Path: want}
		if got := realPath(path); got != want || one.PoolKey() != two.PoolKey() {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	// A store cannot be opened behind a link to nothing, so that what it will be does not matter.
	link("later", at("dangling"))
	if store, err := (&FileStore{Path: at("dangling", "dedup")}).Open(zap.NewNop()); err == nil {
		_ = store.Close()
		t.Error("a link to nothing is a directory")
	}
}
