package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// MasterName is the master's name in the configuration of the sentinels of [StartSentinels].
const MasterName = "main"

// StartSentinels starts sentinels that monitor a master and its replicas, and returns when they know each
// other and the replicas. They consider a master down that does not answer for half a second.
func StartSentinels(t testing.TB, master *Server, replicas, sentinels int) []*Server {
	t.Helper()
	quorum := sentinels/2 + 1
	all := make([]*Server, sentinels)
	for i := range all {
		all[i] = start(t, func(s *Server) []string {
			return s.sentinelArgs(master, quorum)
		})
		// By default, sentinels poll each other and the servers only every few seconds.
		all[i].Do("SENTINEL", "DEBUG", "INFO-PERIOD", "200", "PUBLISH-PERIOD", "200", "ASK-PERIOD", "100")
	}
	for _, s := range all {
		s.await("it knows the other sentinels and the replicas", func() bool {
			state := s.masterState()
			return state["num-other-sentinels"] == fmt.Sprint(sentinels-1) && state["num-slaves"] == fmt.Sprint(replicas)
		})
	}
	return all
}

// sentinelArgs are the arguments of a sentinel. It keeps its state in its configuration
// file, which is left as it is when the sentinel is started again.
func (s *Server) sentinelArgs(master *Server, quorum int) []string {
	path := filepath.Join(s.dir, "sentinel.conf")
	if _, err := os.Stat(path); err != nil {
		text := fmt.Sprintf("sentinel monitor %s 127.0.0.1 %s %d\n", MasterName, master.Port(), quorum) +
			"sentinel down-after-milliseconds " + MasterName + " 500\n" +
			"sentinel failover-timeout " + MasterName + " 3000\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	return []string{
		path, "--sentinel",
		"--port", s.Port(), "--bind", "127.0.0.1",
		"--unixsocket", s.Socket,
		"--dir", s.dir, "--logfile", filepath.Join(s.dir, "log"),
		"--daemonize", "no",
	}
}

// masterState returns a sentinel's state of its master.
func (s *Server) masterState() map[string]string {
	s.t.Helper()
	reply, _ := s.Do("SENTINEL", "MASTER", MasterName).([]any)
	state := make(map[string]string)
	for i := 0; i+1 < len(reply); i += 2 {
		state[fmt.Sprint(reply[i])] = fmt.Sprint(reply[i+1])
	}
	return state
}
