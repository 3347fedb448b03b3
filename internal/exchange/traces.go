package exchange

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// The events of a span.
const (
	spanTakeover = "dedup.takeover"
	spanWait     = "dedup.wait"
	spanReplay   = "dedup.replay"
)

// tracePrefix is what the names of our attributes begin with.
const tracePrefix = "dedup."

// span returns the span of Caddy's tracing, nil where nothing is recorded: then nothing is
// made for it either.
func (x *exchange) span() trace.Span {
	if !x.spanSought { // to find that there is none is dear
		x.spanSought = true
		if span := trace.SpanFromContext(x.r.Context()); span.IsRecording() {
			x.activeSpan = span
		}
	}
	return x.activeSpan
}

// trace gives the request's span what is said of it.
func (x *exchange) trace() {
	span := x.span()
	if span == nil {
		return
	}
	attributes := make([]attribute.KeyValue, 0, len(InfoFields))
	for _, name := range InfoFields {
		switch value, _ := x.info.value(name); value := value.(type) {
		case string:
			if value != "" {
				attributes = append(attributes, attribute.String(tracePrefix+name, value))
			}
		case int:
			attributes = append(attributes, attribute.Int(tracePrefix+name, value))
		}
	}
	span.SetAttributes(attributes...)
}

// traceEvent tells the request's span of an event.
func (x *exchange) traceEvent(name string) {
	if span := x.span(); span != nil {
		span.AddEvent(name)
	}
}

// tracedWait returns what tells the request's span that it waits for a run, nil without a
// span.
func (x *exchange) tracedWait() func() {
	span := x.span()
	if span == nil {
		return nil
	}
	return func() { span.AddEvent(spanWait) }
}
