package equinixapi

import (
	"net/http"
	"slices"
	"strings"
)

// metro is a place; each has one facility here.
type metro struct{ id, code, name, country string }

// metros has the real ones, with their real IDs. Machines stand in the first of them only.
var metros = []metro{
	{"108b2cfb-246b-45e3-885a-bf3e82fce1a0", "am", "Amsterdam", "NL"},
	{"d3d6b29f-042d-43b7-b3ce-0bf53d5754ca", "da", "Dallas", "US"},
	{"96a57b6d-c62c-41b5-ab8e-f8d63a7f9887", "dc", "Washington DC", "US"},
	{"b1ac82b2-616c-4405-9424-457ef6edf9ae", "fr", "Frankfurt", "DE"},
	{"932eecda-6808-44b9-a3be-3abef49796ef", "ny", "New York", "US"},
	{"f6ada324-8226-4bfc-99a8-453d47caf2dc", "sg", "Singapore", "SG"},
	{"2991b022-b8c4-497e-8db7-5a407c3a209b", "sv", "Silicon Valley", "US"},
	{"5f72cbf6-96e4-44f2-ae60-213888fa2b9f", "ty", "Tokyo", "JP"},
	{"a04e45e4-4356-458c-b25a-b72cc54bdad1", "at", "Atlanta", "US"},
	{"60666d92-e00f-43a8-a9f8-fddf665390ca", "ch", "Chicago", "US"},
	{"583a553a-465a-49f3-a8a9-5fa6b44aa519", "dt", "Detroit", "US"},
	{"d50fd052-34ec-4977-a173-ad6f9266995d", "hk", "Hong Kong", "HK"},
	{"56c55e99-8125-4f65-af21-a8682e033804", "ho", "Houston", "US"},
	{"91fa81e8-db1a-4da1-b218-7beeaab6f8bc", "kc", "Kansas City", "US"},
	{"bb059cc0-0b2a-4f5b-8a55-219e6b4240da", "la", "Los Angeles", "US"},
	{"5f1d3910-2059-4737-8e7d-d4907cfbf27f", "ld", "London", "GB"},
	{"833225d2-a35a-49cf-a67c-1f84d5d11654", "mr", "Marseille", "FR"},
	{"f2f0f0b3-5359-4296-a402-56abad842f56", "pa", "Paris", "FR"},
	{"543f8059-65f6-4c2c-b7ad-6dac5eb87085", "pi", "Pittsburgh", "US"},
	{"0446ac38-aae0-45f5-959c-54d26c4fc3c7", "px", "Phoenix", "US"},
	{"b8ffa6c9-3da2-4cf1-b48d-049002b208fe", "se", "Seattle", "US"},
	{"d2a8e94f-2b42-4440-9c8e-8ef01defcd27", "sl", "Seoul", "KR"},
	{"d2f09853-a1aa-4b29-aa9d-682462fd8d1d", "sy", "Sydney", "AU"},
	{"5afb3744-f80d-4b49-bf21-50ede9252cfd", "tr", "Toronto", "CA"},
}

// staffed is how many metros have machines.
const staffed = 8

// Metros lists the codes of the metros where machines stand.
func Metros() []string {
	codes := make([]string, staffed)
	for i := range codes {
		codes[i] = metros[i].code
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

func (m metro) facilityID() string { return catalogueID("facility", m.code) }

func (m metro) href() string { return Prefix + "/locations/metros/" + m.id }

func (m metro) facilityHref() string { return Prefix + "/facilities/" + m.facilityID() }

func renderMetro(m metro, _ view) obj {
	return obj{"id": m.id, "href": m.href(), "code": m.code, "name": m.name, "country": m.country}
}

func (a *API) renderFacility(m metro, v view) obj {
	o := obj{
		"id": m.facilityID(), "href": m.facilityHref(), "code": m.facility(), "name": m.name,
		"features":  []string{"baremetal", "backend_transfer", "layer_2", "global_ipv4", "ibx"},
		"ip_ranges": []string{}, "metro": a.embedMetro(m, v),
	}
	if _, included := v.include["address"]; included { // a bare reference would break some clients
		o["address"] = obj{
			"id": catalogueID("address", m.code), "href": Prefix + "/addresses/" + catalogueID("address", m.code),
			"address": "1 Simulated Street", "city": m.name, "zip_code": "00000", "country": m.country,
		}
	}
	return o
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
		if name == s.slug || name == s.id() {
			return s, true
		}
	}
	return system{}, false
}

func (s system) id() string { return catalogueID("system", s.slug) }

func (s system) href() string { return Prefix + "/operating-systems/" + s.id() }

func (a *API) renderSystem(s system, _ view) obj {
	plans := make([]string, len(a.cfg.Plans))
	for i, p := range a.cfg.Plans {
		plans[i] = p.Slug
	}
	return obj{
		"id": s.id(), "href": s.href(), "slug": s.slug, "name": s.name, "distro": s.distro, "version": s.version,
		"distro_label": strings.ToUpper(s.distro[:1]) + s.distro[1:], "provisionable_on": plans, "preinstallable": false, "licensed": false,
		"pricing": obj{}, "default_operating_system": s.slug == "debian_13",
		"lifecycle": obj{"version_added_at": epoch, "version_deprecated_at": nil, "version_eol_at": nil},
	}
}

// planOf finds a plan by slug or ID.
func (a *API) planOf(name string) (Plan, bool) {
	for _, p := range a.cfg.Plans {
		if name == p.Slug || name == p.id() {
			return p, true
		}
	}
	return Plan{}, false
}

func (p Plan) id() string { return catalogueID("plan", p.Slug) }

func (p Plan) href() string { return Prefix + "/plans/" + p.id() }

// deploymentTypes are the ways to get a plan.
func (p Plan) deploymentTypes() []string {
	if p.ReservedOnly {
		return []string{"reserved"}
	}
	return []string{"on_demand", "spot_market", "reserved"}
}

// What all plans have in common.
const (
	category = "compute"
	planType = "standard"
)

// specsOf is what a server of a plan is made of.
func specsOf(p Plan) obj {
	drives := make([]obj, len(p.Drives))
	for i, d := range p.Drives {
		category := "storage"
		if i == 0 {
			category = "boot"
		}
		drives[i] = obj{"count": d.Count, "size": d.Size, "type": d.Type, "category": category}
	}
	return obj{
		"cpus": []obj{{"count": p.CPUs, "type": p.CPU}}, "memory": obj{"total": sizeGB(p.MemoryGB)}, "drives": drives,
		"nics": []obj{{"count": p.NICs, "type": p.NIC}}, "features": obj{"raid": false, "txt": true, "uefi": p.UEFI},
	}
}

func (a *API) renderPlan(p Plan, v view) obj {
	places, areas := make([]obj, staffed), make([]obj, staffed)
	for i, m := range metros[:staffed] {
		places[i] = v.ref("available_in", m.facilityHref(), func(v view) obj { return a.renderFacility(m, v) })
		areas[i] = v.ref("available_in_metros", m.href(), func(v view) obj { return renderMetro(m, v) })
		places[i]["price"], areas[i]["price"] = obj{"hour": 1.0}, obj{"hour": 1.0}
	}
	return obj{
		"id": p.id(), "href": p.href(), "slug": p.Slug, "name": p.Slug, "class": p.Slug, "line": "baremetal",
		"legacy": false, "description": p.CPU, "type": planType, "categories": []string{category},
		"deployment_types": p.deploymentTypes(), "pricing": obj{"hour": 1.0}, "specs": specsOf(p),
		"available_in": places, "available_in_metros": areas,
	}
}

func (a *API) listMetros(w http.ResponseWriter, _ *http.Request) {
	a.writeAll(w, "metros", len(metros), func(i int) obj { return renderMetro(metros[i], view{}) })
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
	categories := listOf(query, "categories")
	var plans []Plan
	for _, p := range a.cfg.Plans {
		if slug := query.Get("slug"); slug != "" && slug != p.Slug && slug != p.id() ||
			query.Has("type") && query.Get("type") != planType ||
			len(categories) > 0 && !slices.Contains(categories, category) ||
			query.Has("deployment_type") && !slices.Contains(p.deploymentTypes(), query.Get("deployment_type")) {
			continue
		}
		plans = append(plans, p)
	}
	v := viewOf(r)
	a.writeAll(w, "plans", len(plans), func(i int) obj { return a.renderPlan(plans[i], v) })
}

func (a *API) getPlan(w http.ResponseWriter, r *http.Request) {
	if p, ok := a.planOf(r.PathValue("id")); ok {
		writeJSON(w, http.StatusOK, a.renderPlan(p, viewOf(r)))
		return
	}
	writeError(w, errNotFound)
}

func (a *API) getSystem(w http.ResponseWriter, r *http.Request) {
	if s, ok := a.systemOf(r.PathValue("id")); ok {
		writeJSON(w, http.StatusOK, a.renderSystem(s, view{}))
		return
	}
	writeError(w, errNotFound)
}

func (a *API) getMetro(w http.ResponseWriter, r *http.Request) {
	for _, m := range metros {
		if id := r.PathValue("id"); id == m.id || id == m.code {
			writeJSON(w, http.StatusOK, renderMetro(m, view{}))
			return
		}
	}
	writeError(w, errNotFound)
}

func (a *API) getFacility(w http.ResponseWriter, r *http.Request) {
	for _, m := range metros {
		if id := r.PathValue("id"); id == m.facilityID() || id == m.facility() {
			writeJSON(w, http.StatusOK, a.renderFacility(m, viewOf(r)))
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

// What follows is embedded in many answers, and mostly in its plain view.

func (a *API) embedMetro(m metro, v view) any {
	return v.embed("metro", m.href(), func(v view) any {
		return a.constant("metro "+m.code, v, func(v view) obj { return renderMetro(m, v) })
	})
}

func (a *API) embedFacility(m metro, v view) any {
	return v.embed("facility", m.facilityHref(), func(v view) any {
		return a.constant("facility "+m.code, v, func(v view) obj { return a.renderFacility(m, v) })
	})
}

func (a *API) embedSystem(s system, v view) any {
	return v.embed("operating_system", s.href(), func(v view) any {
		return a.constant("system "+s.slug, v, func(v view) obj { return a.renderSystem(s, v) })
	})
}

func (a *API) embedPlan(p Plan, v view) any {
	return v.embed("plan", p.href(), func(v view) any {
		return a.constant("plan "+p.Slug, v, func(v view) obj { return a.renderPlan(p, v) })
	})
}
