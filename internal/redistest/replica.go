package redistest

import (
	"strings"
	"testing"
)

// StartReplica starts a replica of another server, and returns when it has all that
// its master has.
func StartReplica(t testing.TB, master *Server, args ...string) *Server {
	t.Helper()
	replica := Start(t, append([]string{"--replicaof", "127.0.0.1 " + master.Port()}, args...)...)
	replica.AwaitMaster(master)
	return replica
}

// AwaitMaster returns when the server replicates a master, and the master says so too.
func (s *Server) AwaitMaster(master *Server) {
	s.t.Helper()
	s.await("it replicates "+master.Addr, func() bool {
		if s.Info("replication", "master_link_status") != "up" || s.Info("replication", "master_port") != master.Port() {
			return false
		}
		replicas, _ := master.Do("INFO", "replication").(string)
		for line := range strings.Lines(replicas) {
			if strings.Contains(line, "port="+s.Port()+",state=online") {
				return true
			}
		}
		return false
	})
}

// IsMaster reports whether the server says that it is a master. While a sentinel changes
// its role, the server closes the connections of its clients, and says nothing.
func (s *Server) IsMaster() bool {
	s.t.Helper()
	reply, err := s.try("INFO", "replication")
	return err == nil && field(reply, "role") == "master"
}
