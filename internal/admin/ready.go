package admin

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Readiness reports whether a store is ready, and if not, why.
type Readiness struct {
	Store string `json:"store"`
	Ready bool   `json:"ready"`
	Error string `json:"error,omitempty"`
	// Writes is why and since when a readable store refuses or loses writes; "" if it has not in the
	// last minute.
	Writes string `json:"writes,omitempty"`
}

// serveReady answers whether the stores are ready that requests use.
func (a *API) serveReady(w http.ResponseWriter, r *http.Request) error {
	if err := onlyRead(w, r); err != nil {
		return err
	}
	if _, err := queryOf(r); err != nil {
		return err
	}
	answer, err := readiness(r.Context(), a.Open())
	if err != nil {
		return err
	}
	return answerJSON(w, answer)
}

// ReadyAnswer is the answer of a ready process, with at least one store.
type ReadyAnswer struct {
	Stores []Readiness `json:"stores"`
	// Unused names the stores that no configuration uses, and that are open only for responses that
	// are not stored yet.
	Unused []string `json:"unused,omitempty"`
}

// errNoStore returns the problem for a process without an open store.
func errNoStore() error {
	return problemOf(http.StatusServiceUnavailable, errors.New("no store is open: no configuration with dedup has started"))
}

// readiness asks the stores that a configuration uses, and leaves all. The error is a problem that
// names those that are not ready.
func readiness(ctx context.Context, open []Store) (answer ReadyAnswer, err error) {
	var used []Store
	for _, store := range open {
		if store.InUse() {
			used = append(used, store)
			continue
		}
		answer.Unused = append(answer.Unused, store.Name())
		store.Leave()
	}
	defer LeaveAll(used)
	if len(used) == 0 {
		return answer, errNoStore()
	}
	all := Ready(ctx, used)
	if slices.ContainsFunc(all, func(one Readiness) bool { return !one.Ready }) {
		return answer, unavailableProblem(all)
	}
	answer.Stores = all
	return answer, nil
}

// Ready asks the stores in parallel whether they are ready, each within its timeout.
func Ready(ctx context.Context, open []Store) []Readiness {
	all := make([]Readiness, len(open))
	var asked sync.WaitGroup
	for i, store := range open {
		asked.Go(func() {
			all[i] = Readiness{Store: store.Name(), Ready: true}
			if err := store.Ready(ctx); err != nil {
				all[i] = Readiness{Store: store.Name(), Error: err.Error()}
				return
			}
			all[i].Writes = store.WritesRefused()
		})
	}
	asked.Wait()
	return all
}

// unavailableProblem returns a problem that names the stores that do not answer.
func unavailableProblem(all []Readiness) *Problem {
	var failed []string
	for _, one := range all {
		if !one.Ready {
			failed = append(failed, quotedName(one.Store)+": "+one.Error)
		}
	}
	p := kindOf(http.StatusServiceUnavailable)
	p.Detail, p.Stores = strings.Join(failed, "; "), all
	return &p
}
