package equinixapi

import (
	"net/http"
	"strings"
)

// metro is a place; each has one facility here.
type metro struct{ code, name, country string }

var metros = []metro{
	{"am", "Amsterdam", "NL"},
	{"da", "Dallas", "US"},
	{"dc", "Washington DC", "US"},
	{"fr", "Frankfurt", "DE"},
	{"ny", "New York", "US"},
	{"sg", "Singapore", "SG"},
	{"sv", "Silicon Valley", "US"},
	{"ty", "Tokyo", "JP"},
}

// Metros lists the codes of all metros.
func Metros() []string {
	codes := make([]string, len(metros))
	for i, m := range metros {
		codes[i] = m.code
	}
	return codes
}

// metroOf finds the metro of a slot, which is one of ours.
func metroOf(code string) metro {
	for _, m := range metros {
		if m.code == code {
			return m
		}
	}
	return metro{code: code}
}

func (m metro) facility() string { return m.code + "11" }

func (a *API) metroID(code string) string { return a.id("metro "+code, 0) }

func (a *API) renderMetro(m metro, _ view) obj {
	id := a.metroID(m.code)
	return obj{"id": id, "href": Prefix + "/locations/metros/" + id, "code": m.code, "name": m.name, "country": m.country}
}

func (a *API) facilityHref(m metro) string {
	return Prefix + "/facilities/" + a.id("facility "+m.code, 0)
}

func (a *API) renderFacility(m metro, v view) obj {
	return obj{
		"id": a.id("facility "+m.code, 0), "href": a.facilityHref(m), "code": m.facility(), "name": m.name,
		"features":  []string{"baremetal", "backend_transfer", "layer_2", "global_ipv4", "ibx"},
		"ip_ranges": []string{}, "metro": a.embedMetro(m, v),
	}
}

// system is an operating system of the provider.
type system struct{ slug, name, distro, version string }

var systems = []system{
	{"debian_12", "Debian 12", "debian", "12"},
	{"debian_13", "Debian 13", "debian", "13"},
	{"ubuntu_22_04", "Ubuntu 22.04 LTS", "ubuntu", "22.04"},
	{"ubuntu_24_04", "Ubuntu 24.04 LTS", "ubuntu", "24.04"},
	{"rocky_9", "Rocky 9", "rocky", "9"},
	{"custom_ipxe", "Custom iPXE", "custom_ipxe", "1"},
}

// systemOf finds an operating system by slug or ID.
func (a *API) systemOf(name string) (system, bool) {
	for _, s := range systems {
		if name == s.slug || name == a.id("system "+s.slug, 0) {
			return s, true
		}
	}
	return system{}, false
}

func (a *API) systemHref(slug string) string {
	return Prefix + "/operating-systems/" + a.id("system "+slug, 0)
}

func (a *API) renderSystem(s system, _ view) obj {
	plans := make([]string, len(a.cfg.Plans))
	for i, p := range a.cfg.Plans {
		plans[i] = p.Slug
	}
	return obj{
		"id": a.id("system "+s.slug, 0), "href": a.systemHref(s.slug), "slug": s.slug, "name": s.name, "distro": s.distro, "version": s.version,
		"distro_label": strings.ToUpper(s.distro[:1]) + s.distro[1:], "provisionable_on": plans, "preinstallable": false, "licensed": false,
		"pricing": obj{}, "default_operating_system": s.slug == "debian_13",
	}
}

// planOf finds a plan by slug or ID.
func (a *API) planOf(name string) (Plan, bool) {
	for _, p := range a.cfg.Plans {
		if name == p.Slug || name == a.id("plan "+p.Slug, 0) {
			return p, true
		}
	}
	return Plan{}, false
}

func (a *API) planHref(slug string) string { return Prefix + "/plans/" + a.id("plan "+slug, 0) }

func (a *API) renderPlan(p Plan, _ view) obj {
	drives := make([]obj, len(p.Drives))
	for i, d := range p.Drives {
		category := "storage"
		if i == 0 {
			category = "boot"
		}
		drives[i] = obj{"count": d.Count, "size": d.Size, "type": d.Type, "category": category}
	}
	places, areas := make([]obj, len(metros)), make([]obj, len(metros))
	for i, m := range metros {
		places[i] = obj{"href": a.facilityHref(m), "price": obj{"hour": 1.0}}
		areas[i] = obj{"href": Prefix + "/locations/metros/" + a.metroID(m.code), "price": obj{"hour": 1.0}}
	}
	return obj{
		"id": a.id("plan "+p.Slug, 0), "href": a.planHref(p.Slug), "slug": p.Slug, "name": p.Slug, "class": p.Slug, "line": "baremetal",
		"legacy": false, "description": p.CPU, "type": "standard", "categories": []string{"compute"},
		"deployment_types": []string{"on_demand", "spot_market"}, "pricing": obj{"hour": 1.0},
		"specs": obj{
			"cpus": []obj{{"count": p.CPUs, "type": p.CPU}}, "memory": obj{"total": sizeGB(p.MemoryGB)}, "drives": drives,
			"nics": []obj{{"count": p.NICs, "type": p.NIC}}, "features": obj{"raid": false, "txt": true, "uefi": p.UEFI},
		},
		"available_in": places, "available_in_metros": areas,
	}
}

func (a *API) listMetros(w http.ResponseWriter, _ *http.Request) {
	a.writeAll(w, "metros", len(metros), func(i int) obj { return a.renderMetro(metros[i], view{}) })
}

func (a *API) listFacilities(w http.ResponseWriter, r *http.Request) {
	v := viewOf(r)
	a.writeAll(w, "facilities", len(metros), func(i int) obj { return a.renderFacility(metros[i], v) })
}

func (a *API) listSystems(w http.ResponseWriter, _ *http.Request) {
	a.writeAll(w, "operating_systems", len(systems), func(i int) obj { return a.renderSystem(systems[i], view{}) })
}

func (a *API) listPlans(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	plans := a.cfg.Plans
	if slug := query.Get("slug"); slug != "" {
		plans = nil
		if p, ok := a.planOf(slug); ok {
			plans = []Plan{p}
		}
	}
	a.writeAll(w, "plans", len(plans), func(i int) obj { return a.renderPlan(plans[i], view{}) })
}

func (a *API) getMetro(w http.ResponseWriter, r *http.Request) {
	for _, m := range metros {
		if id := r.PathValue("id"); id == a.metroID(m.code) || id == m.code {
			writeJSON(w, http.StatusOK, a.renderMetro(m, view{}))
			return
		}
	}
	writeError(w, errNotFound)
}

// writeAll answers with a list that is not paginated.
func (a *API) writeAll(w http.ResponseWriter, name string, n int, render func(i int) obj) {
	list := make([]obj, n)
	for i := range n {
		list[i] = render(i)
	}
	writeJSON(w, http.StatusOK, obj{name: list})
}

// listCapacity says of each place how much of each plan could be had without a reservation.
func (a *API) listCapacity(byMetro bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		a.mu.RLock()
		free := map[string]int{}
		for slot := a.cfg.Reservations; slot < a.cfg.Reservations+a.cfg.OnDemand; slot++ {
			if a.slotFree(slot, now()) {
				s := a.cfg.Slot(slot)
				free[s.Metro+" "+s.Plan]++
			}
		}
		a.mu.RUnlock()
		report := obj{}
		for _, m := range metros {
			levels := obj{}
			for _, p := range a.cfg.Plans {
				levels[p.Slug] = obj{"level": level(free[m.code+" "+p.Slug])}
			}
			if byMetro {
				report[m.code] = levels
			} else {
				report[m.facility()] = levels
			}
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

// What follows is embedded in many answers, and mostly in its plain view.

func (a *API) embedMetro(m metro, v view) any {
	return v.embed("metro", Prefix+"/locations/metros/"+a.metroID(m.code), func(v view) any {
		return a.constant("metro "+m.code, v, func(v view) obj { return a.renderMetro(m, v) })
	})
}

func (a *API) embedFacility(m metro, v view) any {
	return v.embed("facility", a.facilityHref(m), func(v view) any {
		return a.constant("facility "+m.code, v, func(v view) obj { return a.renderFacility(m, v) })
	})
}

func (a *API) embedSystem(s system, v view) any {
	return v.embed("operating_system", a.systemHref(s.slug), func(v view) any {
		return a.constant("system "+s.slug, v, func(v view) obj { return a.renderSystem(s, v) })
	})
}

func (a *API) embedPlan(p Plan, v view) any {
	return v.embed("plan", a.planHref(p.Slug), func(v view) any {
		return a.constant("plan "+p.Slug, v, func(v view) obj { return a.renderPlan(p, v) })
	})
}
