package caddymodule

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func keyText(b byte) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32))
}

func TestEncryptionKeysAreRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(keyText('b')+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	encoded := base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 32))
	t.Setenv("DEDUP_KEY_A", keyText('a'))
	t.Setenv("DEDUP_KEY_URL", " "+encoded+"\n")
	sealer, err := newSealer([]string{"{env.DEDUP_KEY_A}", "{file." + file + "}", "{env.DEDUP_KEY_URL}"})
	if err != nil {
		t.Fatal(err)
	}
	ids := sealer.KeyIDs()
	if len(ids) != 3 {
		t.Fatalf("%d keys", len(ids))
	}
	if first, err := newSealer([]string{"{env.DEDUP_KEY_A}"}); err != nil || first.KeyIDs()[0] != ids[0] {
		t.Errorf("new responses are not sealed with the first key: %v", err)
	}
	t.Setenv("DEDUP_KEY_STD", base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 32)))
	t.Setenv("DEDUP_KEY_B", strings.TrimRight(keyText('b'), "="))
	again, err := newSealer([]string{"{env.DEDUP_KEY_STD}", "{env.DEDUP_KEY_B}", "{env.DEDUP_KEY_A}"})
	if err != nil {
		t.Fatal(err)
	}
	got := again.KeyIDs()
	slices.Reverse(got)
	if !slices.Equal(got, ids) {
		t.Errorf("the same keys in other forms are %q and %q", got, ids)
	}
	if none, err := newSealer(nil); none != nil || err != nil {
		t.Errorf("without keys: %v, %v", none, err)
	}
}
