package dashboard

import (
	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// alert is why a record needs an operator's attention, "" if it does not.
type alert string

// alerts are all alerts, the most urgent first.
var alerts = []alert{alertHeld, alertFailureKept, alertFailing, alertLapsed, alertUnreadable}

const (
	alertHeld        = alert(idempotency.Held)
	alertFailureKept = alert("failure_kept")
	alertFailing     = alert("failing")
	alertLapsed      = alert(admin.StateLapsed)
	alertUnreadable  = alert(admin.StateUnreadable)
)

// advice is what an operator can do.
var advice = map[alert]string{
	alertHeld:        "It is unknown whether the service executed it. Check the service. If it did not, release the key and have the delivery sent again. If it did, complete the key.",
	alertFailureKept: "The kept response is a failure, and duplicates get it. Fix the service, then release the key and have the delivery sent again.",
	alertFailing:     "The latest run failed. Check the log of the service. The next delivery runs.",
	alertLapsed:      "Its process died, hangs, or cannot reach the store. The next delivery takes over.",
	alertUnreadable:  "The record cannot be read. If the cause cannot be fixed, forget the key.",
}

// advice returns what an operator can do. limited reports whether a handler has max_attempts.
func (a alert) advice(limited bool) string {
	if limited && (a == alertFailing || a == alertLapsed) {
		return advice[a] + " If it is refused because no attempt is left, release the key (caddy-dedup keys release)."
	}
	return advice[a]
}

// alertFor returns the alert of a record. A request that was only observed was not refused, and
// needs no operator.
func alertFor(f *admin.Found) alert {
	a := alertOf(f)
	if a != "" && f.Observed() {
		return ""
	}
	return a
}

// alertOf returns the alert that the state of a record is. Whether attempts are exhausted is not
// in the record: such a key is failing, or lapsed.
func alertOf(f *admin.Found) alert {
	r := f.Record
	switch f.State {
	case string(idempotency.Held), admin.StateLapsed, admin.StateUnreadable:
		return alert(f.State)
	case string(idempotency.Complete):
		if r.Status >= 500 {
			return alertFailureKept
		}
	case string(idempotency.Released):
		// Other statuses that release the key of an API, such as 409, answer its client. The
		// sender of a webhook makes no such mistakes.
		if !f.ByOperator() && !r.Ended.IsZero() && (r.Status >= 500 || r.Provider != "") {
			return alertFailing
		}
	}
	return ""
}
