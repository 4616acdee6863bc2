package service

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"
)

const checkTimeout = 3 * time.Second

type report struct {
	Status     string   `json:"status"` // ok, degraded, draining
	Components []Health `json:"components"`
}

// HealthHandler serves /healthz: every component with its condition, as JSON; 200 when all are
// healthy, 503 otherwise. Their errors are for those who may read (Options).
func (t *Tree) HealthHandler() http.Handler {
	return t.handler(func(h Health) bool { return h.Healthy }, false)
}

// ReadyHandler serves /readyz: 200 when every component runs, or has nothing left to do, with a
// check that passed, and the tree is not being stopped; 503 otherwise.
func (t *Tree) ReadyHandler() http.Handler {
	return t.handler(func(h Health) bool { return h.works }, true)
}

// Started reports whether every component has been started and the tree is not being stopped. One
// that failed and is started again counts: whoever waits for the start of all must not wait for it.
func (t *Tree) Started(ctx context.Context) bool {
	return !t.Draining() && !slices.ContainsFunc(t.Health(ctx), func(h Health) bool { return !started(h) })
}

func started(h Health) bool {
	return h.Condition != Waiting && (h.Healthy || h.Restarts > 0)
}

func (t *Tree) handler(good func(Health) bool, drains bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()
		answer, status := report{Status: "ok", Components: t.Health(ctx)}, http.StatusOK
		if slices.ContainsFunc(answer.Components, func(h Health) bool { return !good(h) }) {
			answer.Status, status = "degraded", http.StatusServiceUnavailable
		}
		if t.options.MayRead != nil && !t.options.MayRead(r) {
			for i := range answer.Components {
				answer.Components[i].Error = ""
			}
		}
		if t.Draining() {
			answer.Status = "draining"
			if drains {
				status = http.StatusServiceUnavailable
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer)
	})
}
