package idempotency_test

import (
	"fmt"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func ExampleDecide() {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	found := &idempotency.Record{State: idempotency.Complete, Token: "of the first request", Fingerprint: "body:1"}
	duplicate := idempotency.Claim{Token: "of the duplicate", Fingerprints: []string{"body:1"}}
	fmt.Println(idempotency.Decide(found, duplicate, now))

	other := idempotency.Claim{Token: "of another request", Fingerprints: []string{"body:2"}}
	fmt.Println(idempotency.Decide(found, other, now))
	// Output:
	// replay
	// reused
}

func ExampleConclude() {
	releaseOn, err := idempotency.ParseStatuses("5xx", "429")
	if err != nil {
		panic(err)
	}
	policy := idempotency.Policy{
		Terms:     idempotency.Terms{Lease: 30 * time.Second, Retention: 24 * time.Hour},
		ReleaseOn: releaseOn,
	}
	for _, status := range []int{201, 503} {
		s := idempotency.Conclude(idempotency.End{
			How:      idempotency.Answered,
			Response: &idempotency.Response{Status: status},
			Attempt:  1,
		}, policy)
		fmt.Println(status, s.State, s.ResponseRetention())
	}
	// Output:
	// 201 complete 24h0m0s
	// 503 released 30s
}
