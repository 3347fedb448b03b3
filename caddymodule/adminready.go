package caddymodule

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// storeReadiness says whether a store answers, and if not, why.
type storeReadiness struct {
	Store string `json:"store"`
	Ready bool   `json:"ready"`
	Error string `json:"error,omitempty"`
}

// serveReady answers whether the stores do.
func (a *AdminAPI) serveReady(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return wrongMethod(r, "GET "+readyPath)
	}
	if _, err := queryOf(r); err != nil {
		return err
	}
	all, err := readiness(r.Context())
	if err != nil {
		return err
	}
	return answerJSON(w, http.StatusOK, struct {
		Stores []storeReadiness `json:"stores"`
	}{all})
}

// readiness asks all stores at once, each within its timeout. The error is a problem
// that names those that do not answer.
func readiness(ctx context.Context) ([]storeReadiness, error) {
	open := stores.all()
	defer leaveAll(open)
	if len(open) == 0 {
		return nil, adminError(http.StatusServiceUnavailable, errors.New("no store is open: no configuration with dedup has started"))
	}
	all := make([]storeReadiness, len(open))
	var asked sync.WaitGroup
	for i, store := range open {
		asked.Go(func() {
			all[i] = storeReadiness{Store: store.name, Ready: true}
			if _, _, err := store.Lookup(ctx, idempotency.Key{}); err != nil {
				all[i] = storeReadiness{Store: store.name, Error: err.Error()}
			}
		})
	}
	asked.Wait()
	for _, one := range all {
		if !one.Ready {
			return nil, unaskedProblem(all)
		}
	}
	return all, nil
}

// unaskedProblem names the stores that do not answer.
func unaskedProblem(all []storeReadiness) error {
	var failed []string
	for _, one := range all {
		if !one.Ready {
			failed = append(failed, one.Store+": "+one.Error)
		}
	}
	kind := adminProblems[http.StatusServiceUnavailable]
	return &adminProblem{
		Title: kind.title, Status: http.StatusServiceUnavailable, Code: kind.code,
		Detail: strings.Join(failed, "; "), Stores: all,
	}
}
