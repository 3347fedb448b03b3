package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// A sender that has the wrong name of the host gets 421, and the operator who looks for its
// request finds it in the access log.
func TestProxyCommandLogsRequestsForOtherHosts(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	addr := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
	_, port, _ := strings.Cut(addr, ":")
	p := startProcess(t, shortTempDir(t), "proxy", "--from", "http://hooks.test:"+port, "--to", up.addr, "--access-log")
	p.addr = addr
	for name, status := range map[string]int{"hooks.test": 201, "other.test": 421} {
		eventually(t, "it answers for "+name, func() bool {
			got, err := try(oneShot, p.newPost("/for-"+name, "", "body", host(name)))
			return err == nil && got.Status == status
		})
		eventually(t, "the log has the request for "+name, func() bool {
			return strings.Contains(p.log.String(), `"uri":"/for-`+name+`"`)
		})
	}
}
