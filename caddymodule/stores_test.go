package caddymodule

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	for _, made := range []string{"data", "other", "inside"} {
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
	link("../data/later", at("other", "dangling"))
	link("loop", at("loop"))
	// A link leads on from where it lies, and not from the links that led to it.
	link(at("data", "dedup"), at("inside", "deep"))
	link("../../other", at("data", "dedup", "up"))
	link("../../later", at("data", "dedup", "up later"))
	for path, want := range map[string]string{
		at("data", "dedup"):                   at("data", "dedup"),
		at("current", "dedup"):                at("data", "dedup"),
		at("relative", "dedup"):               at("data", "dedup"),
		at("other", "linked"):                 at("data", "dedup"),
		at("other", "dangling"):               at("data", "later"),
		at("current", "not", "there", "x"):    at("data", "not", "there", "x"),
		at("other", "..", "current", "dedup"): at("data", "dedup"),
		at("loop"):                            at("loop"),
		at("inside", "deep", "up", "x"):       at("other", "x"),
		at("inside", "deep", "up later"):      at("later"),
	} {
		if got := realPath(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
		one, two := &FileStore{Path: path}, &FileStore{Path: want}
		if one.PoolKey() != two.PoolKey() {
			t.Errorf("%s and %s are two stores", path, want)
		}
	}
	// A link that leads through itself ends, too.
	link("nested/nested", at("nested"))
	if got := realPath(at("nested")); !strings.HasPrefix(got, at("nested")) {
		t.Errorf("a link through itself is %s", got)
	}
}
