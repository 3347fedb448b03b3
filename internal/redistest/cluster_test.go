package redistest_test

import (
	"fmt"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

func TestMovedSlotHasItsKeys(t *testing.T) {
	cluster := redistest.StartCluster(t, 2, 1)
	from, to := cluster.Masters[0], cluster.Masters[1]
	key := "a"
	for i := 0; redistest.Slot(key) >= redistest.Slots/2; i++ {
		key = fmt.Sprint(i)
	}
	slot := redistest.Slot(key)
	if want := from.Do("CLUSTER", "KEYSLOT", key); want != int64(slot) {
		t.Fatalf("key %q: slot %d, but the server says %v", key, slot, want)
	}
	for _, tagged := range []string{"x{a}", "{a}x", "x{a}{b}", "x{}a", "{", "a}", "x{a", "{}{a}", "{{a}}"} {
		if want := from.Do("CLUSTER", "KEYSLOT", tagged); want != int64(redistest.Slot(tagged)) {
			t.Errorf("key %q: slot %d, but the server says %v", tagged, redistest.Slot(tagged), want)
		}
	}
	from.Do("SET", key, "1")
	cluster.StartMove(slot, from, to)
	cluster.FinishMove(slot, from, to)
	if n := to.Do("EXISTS", key); n != int64(1) {
		t.Error("the key was not moved")
	}
	if cluster.Replicas[0].IsMaster() || !from.IsMaster() {
		t.Error("IsMaster is wrong for the replica or its master")
	}
}

func TestSentinelsKnowTheMaster(t *testing.T) {
	master := redistest.Start(t)
	redistest.StartReplica(t, master)
	sentinels := redistest.StartSentinels(t, master, 1, 2)
	for _, sentinel := range sentinels {
		addr, _ := sentinel.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", redistest.MasterName).([]any)
		if len(addr) != 2 || addr[1] != master.Port() {
			t.Errorf("the sentinel at %s names %v, want the port %s", sentinel.Addr, addr, master.Port())
		}
	}
}
