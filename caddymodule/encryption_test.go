package caddymodule

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
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

// load provisions the global option alone, as `validate` and a start do.
func load(t *testing.T, app *App) error {
	t.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
	defer cancel()
	return app.Provision(ctx)
}

func TestEncryptionKeysAreRefused(t *testing.T) {
	const secret = "c2VjcmV0"
	t.Setenv("DEDUP_KEY_A", keyText('a'))
	t.Setenv("DEDUP_KEY_SAME", keyText('a'))
	t.Setenv("DEDUP_KEY_SHORT", secret)
	t.Setenv("DEDUP_KEY_TEXT", secret+"!")
	t.Setenv("DEDUP_KEY_HEX", strings.Repeat("ab", 32))
	t.Setenv("DEDUP_KEY_BLANK", " \n")
	for name, c := range map[string]struct {
		keys []string
		want string
	}{
		"unset":           {[]string{"{env.DEDUP_KEY_UNSET}"}, "encrypt: {env.DEDUP_KEY_UNSET} is empty"},
		"blank":           {[]string{"{env.DEDUP_KEY_BLANK}"}, "encrypt: {env.DEDUP_KEY_BLANK} is empty"},
		"no such file":    {[]string{"{file./nonexistent/key}"}, "encrypt: {file./nonexistent/key} is empty"},
		"short":           {[]string{"{env.DEDUP_KEY_A}", "{env.DEDUP_KEY_SHORT}"}, "encrypt: {env.DEDUP_KEY_SHORT} has 6 bytes in base64; a key is 32"},
		"hex":             {[]string{"{env.DEDUP_KEY_HEX}"}, "encrypt: {env.DEDUP_KEY_HEX} has 48 bytes in base64; a key is 32"},
		"no base64":       {[]string{"{env.DEDUP_KEY_TEXT}"}, "encrypt: {env.DEDUP_KEY_TEXT} has 9 characters that are not base64"},
		"the same value":  {[]string{"{env.DEDUP_KEY_A}", "{env.DEDUP_KEY_SAME}"}, "encrypt: keys 1 and 2 are the same"},
		"the same place":  {[]string{"{env.DEDUP_KEY_A}", "{env.DEDUP_KEY_A}"}, "encrypt: arguments 1 and 2 are the same key"},
		"a literal":       {[]string{"{env.DEDUP_KEY_A}", secret}, "encrypt: argument 2 is not one placeholder"},
		"text beside one": {[]string{secret + "{env.DEDUP_KEY_A}"}, "encrypt: argument 1 is not one placeholder"},
		"two in one":      {[]string{"{env.A}{env.B}"}, "encrypt: argument 1 is not one placeholder"},
		"another kind":    {[]string{"{http.request.host}"}, "encrypt: argument 1 is not one placeholder"},
		"nothing":         {[]string{""}, "encrypt: argument 1 is not one placeholder"},
	} {
		app := &App{Encrypt: c.keys}
		err := load(t, app)
		if app.sealer != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
			continue
		}
		for _, value := range []string{secret, keyText('a')} {
			if strings.Contains(err.Error(), value) {
				t.Errorf("%s: the message shows a key: %v", name, err)
			}
		}
	}
}
