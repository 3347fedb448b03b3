package engine_test

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
)

// A request runs, and its duplicate gets the same response.
func ExampleEngine_Claim() {
	e := engine.New(memory.New(1<<20), engine.Options{
		Timeout:        time.Second,
		Logger:         zap.NewNop(),
		NewToken:       func() string { return "an unguessable secret" },
		NewExecutionID: func() string { return "run-1" },
	})
	defer e.Close()
	request := engine.Request{
		Key:    idempotency.Identity{Namespace: "shop", Kind: "header", ID: "order-17"}.Key(),
		Policy: idempotency.Policy{Terms: idempotency.Terms{Lease: 30 * time.Second, Retention: 24 * time.Hour}},
	}
	for range 2 {
		decision, err := e.Claim(context.Background(), request)
		if err != nil {
			panic(err)
		}
		switch d := decision.(type) {
		case *engine.Run:
			response := &idempotency.Response{Status: 201, Body: []byte("order 17 is placed")}
			settlement, err := d.Settle(idempotency.End{How: idempotency.Answered, Response: response}, nil)
			fmt.Println(d.ExecutionID(), "ran:", settlement.State, err)
		case engine.Replay:
			fmt.Println(d.Record.ExecutionID, "is replayed:", d.Response.Status, string(d.Response.Body))
		}
	}
	// Output:
	// run-1 ran: complete <nil>
	// run-1 is replayed: 201 order 17 is placed
}
