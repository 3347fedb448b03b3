package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// The lines that name the length of a PHP page name that of all of it, or none: who believes
// a smaller one gets a part of the page, and that part is kept.
func TestPHPLinesOfTheDocsCutNoPage(t *testing.T) {
	t.Parallel()
	php, err := exec.LookPath("php")
	if err != nil {
		t.Skip("needs php")
	}
	dir := t.TempDir()
	lines := ""
	for _, b := range docBlocks(t) {
		if b.page == "behaviour.md" && b.language == "php" {
			lines = b.text
		}
	}
	write := func(name, code string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("<?php\n"+code), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("lines.inc", lines)
	pages := map[string]struct {
		code, body string
		named      bool
	}{
		"whole":     {`echo "a page";`, "a page", true},
		"left":      {`echo "a page"; exit;`, "a page", true},
		"begun new": {`echo "junk"; ob_clean(); echo "a page";`, "a page", true},
		"discarded": {`echo "junk"; ob_end_clean(); echo "a longer page";`, "a longer page", false},
		"in pieces": {`echo "a "; ob_flush(); flush(); echo "longer page";`, "a longer page", false},
		"ended":     {`echo "a page"; ob_end_flush();`, "a page", true},
	}
	for name, page := range pages {
		write(strings.ReplaceAll(name, " ", "-")+".php", page.code)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
	server := exec.Command(php, "-n", "-d", "auto_prepend_file="+filepath.Join(dir, "lines.inc"), "-S", addr, "-t", dir)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait() // it was killed
	})
	eventually(t, "PHP serves", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	for name, page := range pages {
		answer, err := http.Get("http://" + addr + "/" + strings.ReplaceAll(name, " ", "-") + ".php")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if string(body) != page.body || err != nil {
			t.Errorf("%s: the client gets %q, %v; want %q", name, body, err, page.body)
		}
		want := ""
		if page.named {
			want = fmt.Sprint(len(page.body))
		}
		if got := answer.Header.Get("Content-Length"); got != want {
			t.Errorf("%s: its length is %q, want %q", name, got, want)
		}
	}
}
