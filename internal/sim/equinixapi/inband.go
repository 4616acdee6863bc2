package equinixapi

import "net/http"

// getMetadata answers what a device can ask about itself.
func (a *API) getMetadata(w http.ResponseWriter, r *http.Request) {
	d, ok := a.deviceOf(r.PathValue("id"))
	if !ok {
		writeError(w, errNotFound)
		return
	}
	system, _ := a.systemOf(d.OS)
	plan, _ := a.planOf(d.Plan)
	place := metroOf(a.cfg.Slot(d.Slot).Metro)
	interfaces := []obj{}
	for i, mac := range a.cfg.Slot(d.Slot).MACs {
		interfaces = append(interfaces, obj{"name": portName(i), "mac": mac, "bond": "bond0"})
	}
	writeJSON(w, http.StatusOK, obj{
		"id": d.ID, "hostname": d.Hostname, "iqn": iqn(d), "state": d.shownState(now()), "tags": nonNil(d.Tags), "class": d.Plan, "plan": d.Plan,
		"facility": place.facility(), "metro": place.code, "reserved": d.Reservation != "", "customdata": object(d.CustomData),
		"ssh_keys":         nonNil(a.deployment(d).AuthorizedKeys),
		"operating_system": obj{"slug": system.slug, "distro": system.distro, "version": system.version, "license_activation": obj{"state": "unlicensed"}},
		"network": obj{
			"bonding": obj{"mode": 4, "link_aggregation": "bonded"}, "interfaces": interfaces, "addresses": a.shownAddresses(d, view{}),
		},
		"specs": specsOf(plan), "volumes": []obj{}, "phone_home_url": "http://tinkerbell.invalid/phone-home", "user_state_url": "http://tinkerbell.invalid/events",
	})
}

// getBandwidth answers for an interface that nothing went through.
func (a *API) getBandwidth(w http.ResponseWriter, r *http.Request) {
	if _, ok := a.deviceOf(r.PathValue("id")); !ok {
		writeError(w, errNotFound)
		return
	}
	series := func(name string) obj {
		return obj{"target": name, "tags": obj{"aggregatedBy": "avg", "name": name}, "datapoints": []obj{}}
	}
	writeJSON(w, http.StatusOK, obj{"bandwidth": []obj{series("inbound"), series("outbound")}})
}

// getHealth answers for hardware that is well.
func (a *API) getHealth(w http.ResponseWriter, r *http.Request) {
	d, ok := a.deviceOf(r.PathValue("id"))
	if !ok {
		writeError(w, errNotFound)
		return
	}
	writeJSON(w, http.StatusOK, obj{"health_rollup": "ok", "updated_at": d.Updated})
}
