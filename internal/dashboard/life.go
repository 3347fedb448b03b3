package dashboard

import (
	"fmt"
	"slices"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// moment is one point in the life of a key.
type moment struct {
	at    time.Time // zero: it is not known when
	Title string
	Text  string
	Mark  string // its shape: "begin", "good", "bad", "act", "note" or "coming"
	Here  bool   // only this process knows of it
	Count int    // of the same in a row, if more than 1
	When  *when
}

// lifeOf tells the life of a key in the order of time: what its record says, and what
// this process saw.
func lifeOf(s seen, notes []Note, waiting int) []moment {
	if s.state == admin.StateUnreadable {
		return noted(nil, notes, "")
	}
	r := s.record
	life := before(r, notes)
	began := moment{at: r.Claimed, Title: "Claimed", Text: fmt.Sprintf("Attempt %d began.", max(1, r.Attempt)), Mark: "begin"}
	if r.ParentID != "" {
		began.Title, began.Text = "Forced", "It ran again on purpose, after the execution "+plain(r.ParentID)+"."
	}
	life = append(life, began)
	life = noted(life, notes, r.ExecutionID)
	if !r.Ended.IsZero() {
		life = append(life, ending(s))
	}
	if s.state == string(idempotency.InFlight) {
		text := "The run goes on, and renews its lease."
		if waiting > 0 {
			text += fmt.Sprintf(" Duplicates that wait for it here: %d.", waiting)
		}
		life = append(life, moment{at: s.now, Title: "In flight", Text: text, Mark: "note", Here: waiting > 0})
	}
	if !r.LeaseUntil.IsZero() {
		m := moment{at: r.LeaseUntil, Title: "Lease ends", Text: "Unless the process renews it, the next delivery takes over.", Mark: "coming"}
		switch {
		case s.state == string(idempotency.Held):
			m.Title, m.Text, m.Mark = "Held", "The lease was not renewed, and nobody knows how the run ended.", "bad"
		case s.state == admin.StateLapsed:
			m.Title, m.Text, m.Mark = "Lease lapsed", "It was not renewed. The next delivery takes over.", "bad"
		}
		life = append(life, m)
	}
	life = append(life, moment{at: r.Expires, Title: "Forgotten", Text: "The store forgets the key then, unless it runs again before.", Mark: "coming"})
	slices.SortStableFunc(life, func(a, b moment) int { return a.at.Compare(b.at) })
	return inARow(life)
}

// before is what the record says of earlier runs, without saying when. What this process
// saw itself is told by its notes.
func before(r *idempotency.Record, notes []Note) []moment {
	var life []moment
	attemptSeen, actSeen := false, false
	for _, n := range notes {
		attemptSeen = attemptSeen || n.Attempt > 0 && n.Attempt < r.Attempt
		actSeen = actSeen || n.What == Freed
	}
	if r.Attempt > 1 && !attemptSeen {
		life = append(life, moment{Title: "Earlier attempts", Text: fmt.Sprintf("%d before this one. The record keeps the latest.", r.Attempt-1), Mark: "note"})
	}
	if r.FreedAttempts > 0 && !actSeen {
		life = append(life, moment{Title: "Freed", Text: fmt.Sprintf("By an operator, after attempt %d. The record does not keep by whom.", r.FreedAttempts), Mark: "act"})
	}
	return life
}

// ending says how the latest run ended.
func ending(s seen) moment {
	r := s.record
	m := moment{at: r.Ended, Title: "Ended", Mark: "good"}
	took := ""
	if !r.Claimed.IsZero() && r.Ended.After(r.Claimed) {
		took = " It took " + span(r.Ended.Sub(r.Claimed)) + "."
	}
	freed := r.Attempt > 0 && r.FreedAttempts >= r.Attempt
	switch {
	case r.State == idempotency.Complete && r.Status >= 500:
		m.Mark, m.Text = "bad", fmt.Sprintf("Its answer, %d, is kept, although it is a failure.", r.Status)
	case r.State == idempotency.Complete:
		m.Text = fmt.Sprintf("Its answer, %d, is kept. Duplicates get it.", r.Status)
	case r.State == idempotency.Held:
		m.Mark, m.Text = "bad", "Nobody knows whether it was executed. No request runs."
	case r.Attempt == 0:
		m.Mark, m.Text = "bad", "The service was not reached. The key is free."
	case r.Status != 0 && freed:
		m.Mark, m.Text = "note", fmt.Sprintf("With %d.", r.Status)
	case freed:
		m.Mark, m.Text = "note", "Without an answer."
	case r.Status != 0:
		m.Mark, m.Text = "bad", fmt.Sprintf("With %d, which is not kept. The key is free for a retry.", r.Status)
	default:
		m.Mark, m.Text = "bad", "Without an answer to keep. The key is free for a retry."
	}
	m.Text += took
	return m
}

// noteTexts say what this process saw.
var noteTexts = map[string]struct{ title, text, mark string }{
	"fresh":             {"Claimed", "A request ran.", "begin"},
	"forced":            {"Forced", "A request ran again on purpose.", "begin"},
	"replayed":          {"Duplicate", "It got the kept answer.", "good"},
	"waited":            {"Duplicate", "It waited for the run, and got its answer.", "good"},
	"acknowledged":      {"Duplicate", "It was acknowledged.", "good"},
	"conflict":          {"Duplicate", "It was told that it is one.", "good"},
	"not_kept":          {"Duplicate", "The answer was too large to be kept for it.", "note"},
	"in_flight":         {"Refused", "A duplicate came while the run was in flight.", "note"},
	"reused":            {"Refused", "The key came with another request.", "bad"},
	"held":              {"Refused", "The key is held.", "bad"},
	"exhausted":         {"Refused", "No attempt was left.", "bad"},
	"overloaded":        {"Refused", "Too much was in progress.", "bad"},
	"store_unavailable": {"Refused", "The store did not answer.", "bad"},
	"record_unreadable": {"Refused", "The record could not be read.", "bad"},
	"no_handler":        {"Refused", "No handler answered the request.", "bad"},
	"loop":              {"Refused", "The run met a dedup with the same key.", "bad"},
	"unprotected":       {"Passed", "Without protection, because the store failed.", "bad"},
	TookOver:            {"Taken over", "The lease of the run before had lapsed.", "note"},
	Ended:               {"Ended", "The answer was kept.", "good"},
	Failed:              {"Ended", "Nothing was kept, and the key was free.", "bad"},
	Unknown:             {"Held", "How the run ended is unknown.", "bad"},
	Freed:               {"Freed", "An operator freed the key.", "act"},
	Forgotten:           {"Forgotten", "An operator removed the record.", "act"},
}

// noted adds what this process saw. What the record says of its own run is not told twice.
func noted(life []moment, notes []Note, ofRecord string) []moment {
	for _, n := range notes {
		told := n.ExecutionID != "" && n.ExecutionID == ofRecord
		switch n.What {
		case "fresh", "forced", Ended, Failed, Unknown:
			if told {
				continue
			}
		}
		say, known := noteTexts[n.What]
		if !known {
			say.title, say.text, say.mark = "Refused", "The request was "+n.What+".", "bad"
		}
		m := moment{at: n.At, Title: say.title, Text: say.text, Mark: say.mark, Here: true}
		if n.Who != "" {
			m.Text = "By " + plain(n.Who) + "."
		}
		if n.Attempt > 0 && n.What == "fresh" {
			m.Text = fmt.Sprintf("Attempt %d began.", n.Attempt)
		}
		if n.Status > 0 {
			m.Text = fmt.Sprintf("With %d. ", n.Status) + m.Text
		}
		life = append(life, m)
	}
	return life
}

// inARow makes one moment of those that say the same, one after the other.
func inARow(life []moment) []moment {
	var rows []moment
	for _, m := range life {
		if last := len(rows) - 1; last >= 0 && m.Here && rows[last].Title == m.Title && rows[last].Text == m.Text {
			rows[last].Count = max(1, rows[last].Count) + 1
			rows[last].at = m.at
			continue
		}
		rows = append(rows, m)
	}
	return rows
}
