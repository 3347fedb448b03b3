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

// trace gives the request's span what is known of it. A span that is not recorded costs nothing.
func (x *exchange) trace() {
	span := trace.SpanFromContext(x.r.Context())
	if !span.IsRecording() {
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

// traceEvent adds an event to the request's span.
func (x *exchange) traceEvent(name string) {
	trace.SpanFromContext(x.r.Context()).AddEvent(name)
}
