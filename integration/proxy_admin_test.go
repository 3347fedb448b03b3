package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// A placeholder in the path of the admin API's socket, such as the directory that systemd has
// made for it, is replaced before room is made for the socket.
func TestProxyCommandHasItsSocketWhereAPlaceholderSays(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	dir, addr := shortTempDir(t), fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
	runtimeDirectory := filepath.Join(dir, "run", "dedup")
	p := startProcessWith(t, dir, append(homeEnv(dir), "RUNTIME_DIRECTORY="+runtimeDirectory),
		binary, "proxy", "--from", addr, "--to", up.addr, "--admin", "unix/{env.RUNTIME_DIRECTORY}/admin.sock|0600")
	p.addr = addr
	eventually(t, "it answers", func() bool {
		got, err := try(oneShot, p.newPost("/", "k", "body"))
		return err == nil && got.Status == 201
	})
	address := "unix/" + filepath.Join(runtimeDirectory, "admin.sock")
	if output, code := command(t, dir, "keys", "list", "--address", address); code != 0 {
		t.Errorf("the commands end with %d: %s", code, output)
	}
	mustSay(t, p.log.String(), "admin:  "+address)
	if _, err := os.Stat(filepath.Join(dir, "{env.RUNTIME_DIRECTORY}")); err == nil {
		t.Error("it has made a directory with the name of the placeholder")
	}
}
