package caddymodule

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// traced sends a request in a span, and returns what was recorded of it.
func (s *site) traced(key string) tracetest.SpanStub {
	s.t.Helper()
	recorded := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(recorded))
	ctx, span := provider.Tracer("test").Start(context.Background(), "request")
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://trace.test/", strings.NewReader("body"))
	r.Header.Set("Idempotency-Key", key)
	s.Config.Handler.ServeHTTP(httptest.NewRecorder(), r)
	span.End()
	spans := recorded.GetSpans()
	if len(spans) != 1 {
		s.t.Fatalf("%d spans are recorded", len(spans))
	}
	return spans[0]
}

func wantSpan(t *testing.T, got tracetest.SpanStub, want map[string]string, events ...string) {
	t.Helper()
	attributes := make(map[string]string)
	for _, a := range got.Attributes {
		attributes[string(a.Key)] = a.Value.String()
	}
	for name, value := range want {
		if attributes[name] != value {
			t.Errorf("%s is %q, want %q; all: %v", name, attributes[name], value, attributes)
		}
	}
	var names []string
	for _, e := range got.Events {
		names = append(names, e.Name)
	}
	if !slices.Equal(names, events) {
		t.Errorf("the span has the events %q, want %q", names, events)
	}
}

func TestSpansSayWhatBecameOfRequests(t *testing.T) {
	arrived, goOn := make(chan struct{}, 1), make(chan struct{}, 1)
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if r.Header.Get("Idempotency-Key") == "slow" {
			arrived <- struct{}{}
			<-goOn
		}
		answers(201, "created")(w, r, n)
	})
	s := serve(t, "dedup {", "lease 1s", "}", "reverse_proxy "+address)
	fresh := s.traced("k")
	key, record := s.listed()[0].Key, s.only()
	said := map[string]string{"dedup.outcome": "executed", "dedup.key": key.String(), "dedup.delivery_id": "k", "dedup.execution_id": record.ExecutionID, "dedup.attempt": "1"}
	wantSpan(t, fresh, said)
	if slices.ContainsFunc(fresh.Attributes, func(a attribute.KeyValue) bool { return a.Key == "dedup.provider" }) {
		t.Error("a request of no provider names one")
	}
	said["dedup.outcome"] = "replayed"
	wantSpan(t, s.traced("k"), said, "dedup.replay")

	first, second := make(chan tracetest.SpanStub), make(chan tracetest.SpanStub)
	go func() { first <- s.traced("slow") }()
	<-arrived
	go func() { second <- s.traced("slow") }()
	s.waits()
	goOn <- struct{}{}
	wantSpan(t, <-first, map[string]string{"dedup.outcome": "executed"})
	wantSpan(t, <-second, map[string]string{"dedup.outcome": "waited", "dedup.delivery_id": "slow"}, "dedup.wait", "dedup.replay")

	s.lapse(key)
	takeover := s.traced("k")
	// It waits if its process has not seen yet that the lease has lapsed.
	takeover.Events = slices.DeleteFunc(takeover.Events, func(e sdktrace.Event) bool { return e.Name == "dedup.wait" })
	wantSpan(t, takeover, map[string]string{"dedup.outcome": "executed", "dedup.attempt": "3"}, "dedup.takeover")
}

// lapse has a run of the key lapse, as if its process had died.
func (s *site) lapse(key idempotency.Key) {
	s.t.Helper()
	if err := s.keys.Release(s.t.Context(), key, idempotency.Precondition{}); err != nil {
		s.t.Fatal(err)
	}
	decision, err := s.keys.Claim(s.t.Context(), engine.Request{
		Key: key, Timeout: time.Nanosecond,
		Policy: idempotency.Policy{Terms: idempotency.Terms{Lease: 30 * time.Millisecond, Retention: time.Hour}},
	})
	run, ok := decision.(*engine.Run)
	if !ok || err != nil {
		s.t.Fatalf("got %T, %v", decision, err)
	}
	s.t.Cleanup(func() { _, _ = run.Settle(idempotency.End{How: idempotency.NotSent}, nil) }) // the store stays open for it
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		record, now, err := s.keys.Lookup(s.t.Context(), key)
		if err != nil || time.Now().After(deadline) {
			s.t.Fatalf("the run does not lapse: %+v, %v", record, err)
		}
		if inFlight, _ := s.keys.InProgress(); record.Lapsed(now) && inFlight > 0 {
			return
		}
	}
}

func TestSpansHaveNoDeliveryIDUnderEncrypt(t *testing.T) {
	t.Setenv("DEDUP_TRACE_KEY", strings.Repeat("A", 43)+"=")
	s := serveWith(t, "encrypt {env.DEDUP_TRACE_KEY}", "dedup", "respond done 201")
	got := s.traced("secret")
	wantSpan(t, got, map[string]string{"dedup.outcome": "executed", "dedup.delivery_id": ""})
	if strings.Contains(fmt.Sprint(got.Attributes), "secret") {
		t.Errorf("the span has the delivery ID: %v", got.Attributes)
	}
}
