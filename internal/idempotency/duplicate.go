package idempotency

// OnDuplicate is what the duplicate of a complete request gets.
type OnDuplicate string

// What a duplicate gets: the kept response, a 409 that names the first run, an empty 200, or a
// 303 to the first response's Location.
const (
	ReplayDuplicate      OnDuplicate = "replay"
	ConflictDuplicate    OnDuplicate = "conflict"
	AcknowledgeDuplicate OnDuplicate = "acknowledge"
	SeeOtherDuplicate    OnDuplicate = "see_other"
)

// AnswerKind is the kind of the answer to a duplicate, by its outcome.
type AnswerKind string

const (
	// AnswerUnread is no answer yet: it depends on the kept response, which is not read.
	AnswerUnread       AnswerKind = ""
	AnswerConflict     AnswerKind = "conflict"
	AnswerAcknowledged AnswerKind = "acknowledged"
	AnswerSeeOther     AnswerKind = "see_other"
	AnswerNotKept      AnswerKind = "not_kept"
	AnswerWaited       AnswerKind = "waited"
	AnswerReplayed     AnswerKind = "replayed"
)

// Answer is what a duplicate gets.
type Answer struct {
	Kind     AnswerKind
	Response *Response // nil for AnswerUnread and AnswerConflict
}

// Needs reports whether the answer has the body of a kept response.
func (a Answer) Needs(kept *Response) bool {
	return a.Kind == AnswerUnread || kept != nil && a.Response == kept
}

// Answer returns what a duplicate gets of a record's response, which is nil if it is not read. The rule
// counts for complete requests only: one that waited gets the response of the run.
func (on OnDuplicate) Answer(record *Record, kept *Response, waited bool) Answer {
	failed, location := false, record.Location
	if kept != nil {
		failed, location = kept.Failed, ""
		if lines := kept.Header["Location"]; len(lines) > 0 {
			location = lines[0]
		}
	}
	switch {
	case waited:
	case kept == nil && location == LongLocation && on != AcknowledgeDuplicate: // it is read
	case on == ConflictDuplicate && !failed:
		return Answer{AnswerConflict, nil}
	case on == AcknowledgeDuplicate && record.Status < 400:
		// A kept failure is no success: a sender that took it for one would never deliver again.
		return Answer{AnswerAcknowledged, &Response{Status: 200}}
	case on == SeeOtherDuplicate && location != "":
		return Answer{AnswerSeeOther, &Response{Status: 303, Header: map[string][]string{"Location": {location}}}}
	}
	switch {
	case kept == nil:
		return Answer{}
	case kept.Omitted:
		return Answer{AnswerNotKept, kept}
	case waited:
		return Answer{AnswerWaited, kept}
	default:
		return Answer{AnswerReplayed, kept}
	}
}
