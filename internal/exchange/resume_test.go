package exchange

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// A client that resumes a call gets its response whatever on_duplicate says, also while the store refuses writes and
// only this process has it.
func TestResumeBeforeTheResponseIsStored(t *testing.T) {
	for _, on := range []idempotency.OnDuplicate{idempotency.ReplayDuplicate, idempotency.ConflictDuplicate} {
		store := &storepool.Store{Engine: engineOn(t, refusingWrites{memory.New(1 << 20)})}
		run, _ := startRun(t, store.Engine)
		response := &idempotency.Response{Status: http.StatusOK, Body: []byte("the result")}
		_, _ = run.Settle(idempotency.End{How: idempotency.Answered, Response: response}, nil)

		c := Config{OnDuplicate: on, Budget: budget.New(1 << 20), Report: &report.Reporter{Observer: noCounts{}, Logger: zap.NewNop()}}
		c.Identify.Calls = resumedCalls{}
		x := &exchange{Handler: New(c), w: httptest.NewRecorder(), r: httptest.NewRequest(http.MethodGet, "/", nil), info: new(report.Info)}
		x.Request.Init(x.keys, c.Report, c.Budget, x.w, x.r, x.info)
		x.Identify()
		parts, ready := x.await(store, idempotency.Key{1})
		if len(parts) != 1 || string(parts[0]) != "the result" || x.Outcome() != report.Waited {
			t.Errorf("%s: it gets %q, and its outcome is %s", on, parts, x.Outcome())
		}
		ready.close()
	}
}

// refusingWrites is a store that stores no end of a run.
type refusingWrites struct{ idempotency.Store }

func (refusingWrites) Settle(context.Context, idempotency.Key, *idempotency.Record, idempotency.Settlement) error {
	return errors.New("writes are refused")
}

// resumedCalls are calls of which each request asks for the rest.
type resumedCalls struct{ identify.Calls }

func (resumedCalls) ReadHead(*http.Request, func(...string) []string) (identify.CallRead, bool) {
	return identify.CallRead{Call: resumedCall{}, Resume: identify.Resume{EventID: "event"}}, true
}

type resumedCall struct{ identify.Call }

func (resumedCall) Replay(kept []byte) ([][]byte, error) { return [][]byte{kept}, nil }
