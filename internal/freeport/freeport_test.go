package freeport_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// TestPortsWhileProcessesStart asks for ports while other tests start servers. Each can be
// listened on at once.
func TestPortsWhileProcessesStart(t *testing.T) {
	done := make(chan struct{})
	var starting sync.WaitGroup
	for range 4 {
		starting.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^$").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	given := make(map[int]bool)
	for range 500 {
		port := freeport.Of(t)
		if given[port] {
			t.Errorf("%d was given twice", port)
		}
		given[port] = true
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Error(err)
			break
		}
		defer func() { _ = listener.Close() }()
	}
	close(done)
	starting.Wait()
}

func TestPortThatIsTaken(t *testing.T) {
	port, release := freeport.Claim(t)
	release()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	for range 12000 { // all there are
		again, release := freeport.Claim(t)
		release()
		if again == port {
			t.Fatalf("%d was given, and there is a server on it", port)
		}
	}
}
