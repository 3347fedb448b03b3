package redistest

import (
	"strings"
	"testing"
)

// StartReplica starts a replica of another server, and returns when it has the data of its master.
func StartReplica(t testing.TB, master *Server, args ...string) *Server {
	t.Helper()
	replica := Start(t, append([]string{"--replicaof", "127.0.0.1 " + master.Port()}, args...)...)
	replica.AwaitMaster(master)
	return replica
}

// AwaitMaster returns when the server replicates a master, and the master reports it as online.
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

// IsMaster reports whether the server reports the role master. It returns false if the server does not
// answer: while a sentinel changes its role, it closes the connections of its clients.
func (s *Server) IsMaster() bool {
	s.t.Helper()
	reply, err := s.try("INFO", "replication")
	return err == nil && field(reply, "role") == "master"
}
