package redistest

import (
	"strconv"
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

// AwaitMaster returns when the server replicates a master, and the master reports it as online and has its
// acknowledgement. Valkey's first one may come a second after that, and a WAIT before it waits in vain.
func (s *Server) AwaitMaster(master *Server) {
	s.t.Helper()
	s.await("it replicates "+master.Addr, func() bool {
		_, online := master.acknowledgedBy(s)
		return online && s.Info("replication", "master_link_status") == "up" && s.Info("replication", "master_port") == master.Port()
	})
	master.Do("FUNCTION", "FLUSH") // something to acknowledge
	written, _ := strconv.Atoi(master.Info("replication", "master_repl_offset"))
	s.await("it acknowledges to "+master.Addr, func() bool {
		offset, online := master.acknowledgedBy(s)
		return online && offset >= written
	})
}

// acknowledgedBy returns the offset that a replica has acknowledged, and whether it is online.
func (s *Server) acknowledgedBy(replica *Server) (offset int, online bool) {
	replicas, _ := s.Do("INFO", "replication").(string)
	_, text, online := strings.Cut(replicas, "port="+replica.Port()+",state=online,offset=")
	text, _, _ = strings.Cut(text, ",")
	offset, _ = strconv.Atoi(text)
	return offset, online
}

// IsMaster reports whether the server reports the role master. It returns false if the server does not
// answer: while a sentinel changes its role, it closes the connections of its clients.
func (s *Server) IsMaster() bool {
	s.t.Helper()
	reply, err := s.try("INFO", "replication")
	return err == nil && field(reply, "role") == "master"
}
