package history

import (
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"
)

// checkLimit bounds the search for an order of one key's events.
const checkLimit = 20 * time.Second

// Violation is a key whose history the promises do not allow.
type Violation struct {
	Key string
	// Wrong says what is not allowed, one line each.
	Wrong []string
	// drawing is the search for an order that failed, if one did.
	drawing *drawing
}

type drawing struct {
	model porcupine.Model
	info  porcupine.LinearizationInfo
}

// Check returns the keys whose histories the promises do not allow.
func (h *History) Check() []Violation {
	var violations []Violation
	for _, k := range h.byKey() {
		v := Violation{Key: k.key, Wrong: k.invariants()}
		if !h.Forgetful {
			v.search(k)
		}
		if len(v.Wrong) > 0 {
			violations = append(violations, v)
		}
	}
	return violations
}

// search looks for an order of the key's events that its state machine allows.
func (v *Violation) search(k *keyHistory) {
	operations, err := k.operations()
	if err != nil {
		v.Wrong = append(v.Wrong, err.Error())
		return
	}
	model := keyModel()
	switch porcupine.CheckOperationsTimeout(model, operations, checkLimit) {
	case porcupine.Illegal:
		v.Wrong = append(v.Wrong, "there is no order of its events that the key's state machine allows")
		_, info := porcupine.CheckOperationsVerbose(model, operations, checkLimit)
		v.drawing = &drawing{model, info}
	case porcupine.Unknown:
		v.Wrong = append(v.Wrong, fmt.Sprintf("an order of its %d events was not found within %s, nor excluded", len(operations), checkLimit))
	}
}

// Of returns the part of a history that concerns one key, with all faults.
func (h *History) Of(key string) *History {
	part := *h
	part.Requests, part.Runs, part.Freed = nil, nil, nil
	for _, r := range h.Requests {
		if r.Key == key {
			part.Requests = append(part.Requests, r)
		}
	}
	for _, r := range h.Runs {
		if r.Key == key {
			part.Runs = append(part.Runs, r)
		}
	}
	for _, f := range h.Freed {
		if f.Key == key {
			part.Freed = append(part.Freed, f)
		}
	}
	return &part
}
