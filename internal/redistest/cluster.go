package redistest

import (
	"net"
	"slices"
	"strconv"
	"testing"
)

// Slots is how many hash slots a cluster has.
const Slots = 16384

// Cluster is a Redis Cluster of one test.
type Cluster struct {
	// Masters each have an equal share of the slots, in order.
	Masters []*Server
	// Replicas are those of the first masters, one each.
	Replicas []*Server
}

// StartCluster starts a cluster and returns when all nodes know each other. Each of the first masters
// has one of the replicas. A node that does not answer for a second counts as failed; the other nodes
// continue to serve their slots.
func StartCluster(t testing.TB, masters, replicas int) *Cluster {
	t.Helper()
	c := new(Cluster)
	var all []*Server
	for i := range masters + replicas {
		node := start(t, (*Server).clusterArgs)
		node.Do("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		if i < masters {
			c.Masters = append(c.Masters, node)
			node.Do("CLUSTER", "ADDSLOTSRANGE", i*Slots/masters, (i+1)*Slots/masters-1)
		} else {
			c.Replicas = append(c.Replicas, node)
		}
		// Without this, the nodes would need seconds to know each other.
		_, bus, _ := net.SplitHostPort(node.busAddr())
		for _, other := range all {
			other.Do("CLUSTER", "MEET", "127.0.0.1", node.Port(), bus)
		}
		all = append(all, node)
	}
	for _, node := range all {
		node.await("it knows the whole cluster", func() bool {
			info := node.Do("CLUSTER", "INFO")
			return field(info, "cluster_state") == "ok" && field(info, "cluster_known_nodes") == strconv.Itoa(len(all))
		})
	}
	for i, replica := range c.Replicas {
		replica.Do("CLUSTER", "REPLICATE", c.Masters[i].Do("CLUSTER", "MYID"))
		replica.AwaitMaster(c.Masters[i])
		// CLUSTER SLOTS leaves out a replica that has received nothing yet.
		c.Masters[i].Do("FLUSHALL")
	}
	for _, node := range all {
		node.await("it knows the replicas", func() bool {
			ranges, _ := node.Do("CLUSTER", "SLOTS").([]any)
			nodes := 0
			for _, r := range ranges {
				nodes += len(r.([]any)) - 2 // besides its nodes, a range has its first and last slot
			}
			return nodes == len(all)
		})
	}
	return c
}

// clusterArgs returns the arguments of a cluster node. The port of its bus is set, because the default,
// its own port plus 10,000, may not exist.
func (s *Server) clusterArgs() []string {
	_, bus, _ := net.SplitHostPort(s.busAddr())
	return append(s.commonArgs(), "--port", s.Port(),
		"--cluster-enabled", "yes", "--cluster-port", bus,
		"--cluster-node-timeout", "1000",
		"--cluster-require-full-coverage", "no",
		"--cluster-replica-validity-factor", "0")
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, node := range slices.Concat(c.Masters, c.Replicas) {
		addrs = append(addrs, node.Addr)
	}
	return addrs
}

// Do sends a command to every master.
func (c *Cluster) Do(args ...any) {
	for _, master := range c.Masters {
		master.Do(args...)
	}
}

// StartMove starts to move a slot from one master to another.
func (c *Cluster) StartMove(slot int, from, to *Server) {
	from.t.Helper()
	to.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", from.Do("CLUSTER", "MYID"))
	from.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", to.Do("CLUSTER", "MYID"))
}

// FinishMove moves the keys of a slot, and then the slot itself, after [Cluster.StartMove].
func (c *Cluster) FinishMove(slot int, from, to *Server) {
	from.t.Helper()
	for {
		keys, _ := from.Do("CLUSTER", "GETKEYSINSLOT", slot, 10).([]any)
		if len(keys) == 0 {
			break
		}
		from.Do(append([]any{"MIGRATE", "127.0.0.1", to.Port(), "", 0, timeout.Milliseconds(), "KEYS"}, keys...)...)
	}
	owner := to.Do("CLUSTER", "MYID")
	to.Do("CLUSTER", "SETSLOT", slot, "NODE", owner)
	from.Do("CLUSTER", "SETSLOT", slot, "NODE", owner)
}

// busAddr returns the address on which a node's bus listens.
func (s *Server) busAddr() string {
	if s.bus == "" {
		s.bus = freeAddr(s.t)
	}
	return s.bus
}

// Slot returns the hash slot of the keys with a text in braces: its CRC16 (XMODEM), modulo the number of
// slots.
func Slot(tag string) int {
	crc := uint16(0)
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % Slots
}
