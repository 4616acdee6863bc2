package equinixapi

import (
	"fmt"
	"net/http"
	"slices"
)

// offer is a plan at a place, which is a metro or, in older calls, a facility.
type offer struct{ place, plan string }

// freeOnDemand counts what could be had without a reservation.
func (a *API) freeOnDemand(byMetro bool) map[offer]int {
	free := map[offer]int{}
	at := now()
	a.mu.RLock()
	defer a.mu.RUnlock()
	for slot := a.cfg.Reservations; slot < a.cfg.Reservations+a.cfg.OnDemand; slot++ {
		if a.slotFree(slot, at) {
			s := a.cfg.Slot(slot)
			free[offer{metroOf(s.Metro).place(byMetro), s.Plan}]++
		}
	}
	for _, p := range a.cfg.Plans {
		if p.ReservedOnly {
			for _, m := range metros {
				delete(free, offer{m.place(byMetro), p.Slug})
			}
		}
	}
	return free
}

// place is how calls about capacity name a metro.
func (m metro) place(byMetro bool) string {
	if byMetro {
		return m.code
	}
	return m.facility()
}

// listCapacity says of each place how much of each plan could be had without a reservation.
func (a *API) listCapacity(byMetro bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		free := a.freeOnDemand(byMetro)
		report := obj{}
		for _, m := range metros {
			levels := obj{}
			for _, p := range a.cfg.Plans {
				levels[p.Slug] = obj{"level": level(free[offer{m.place(byMetro), p.Slug}])}
			}
			report[m.place(byMetro)] = levels
		}
		writeJSON(w, http.StatusOK, obj{"capacity": report})
	}
}

func level(free int) string {
	switch {
	case free == 0:
		return "unavailable"
	case free == 1:
		return "critical"
	case free < 5:
		return "limited"
	}
	return "normal"
}

// checkCapacity says of each line of an order whether it could be had, if the lines before it that
// could were had.
func (a *API) checkCapacity(byMetro bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			Servers []struct {
				Metro    string `json:"metro"`
				Facility string `json:"facility"`
				Plan     string `json:"plan"`
				Quantity int    `json:"quantity"`
			} `json:"servers"`
		}
		if err := readJSON(w, r, &request); err != nil {
			writeError(w, err)
			return
		}
		var wrong []string
		if len(request.Servers) == 0 {
			wrong = append(wrong, "Servers can't be blank")
		}
		free := a.freeOnDemand(byMetro)
		answers := make([]obj, 0, len(request.Servers))
		for i, s := range request.Servers {
			name, place := "facility", s.Facility
			if byMetro {
				name, place = "metro", s.Metro
			}
			plan, known := a.planOf(s.Plan)
			if !known {
				wrong = append(wrong, fmt.Sprintf("servers[%d]: %q is not a valid plan", i, s.Plan))
			}
			if !slices.ContainsFunc(metros, func(m metro) bool { return m.place(byMetro) == place }) {
				wrong = append(wrong, fmt.Sprintf("servers[%d]: %q is not a valid %s", i, place, name))
			}
			if s.Quantity < 1 {
				wrong = append(wrong, fmt.Sprintf("servers[%d]: quantity must be at least 1, not %d", i, s.Quantity))
			}
			key := offer{place, plan.Slug}
			available := free[key] >= s.Quantity
			if available {
				free[key] -= s.Quantity
			}
			answers = append(answers, obj{name: place, "plan": s.Plan, "quantity": s.Quantity, "available": available})
		}
		if len(wrong) > 0 {
			writeError(w, unprocessable(wrong...))
			return
		}
		writeJSON(w, http.StatusOK, obj{"servers": answers})
	}
}
