package equinixapi

import (
	"encoding/json"
	"fmt"
	"time"
)

// rendering is how a device was last rendered for a list, in which view, and how long that stays
// right.
type rendering struct {
	view  string
	text  []byte
	until time.Time
}

// renderForList renders a device. Devices to which nothing happens are rendered once for each view
// that is repeated.
func (a *API) renderForList(d *device, v view) []byte {
	at := now()
	settled := d.Task == nil
	for name := range v.include {
		// What does not change while there is a device: a reservation cannot be moved then.
		settled = settled && (name == "plan" || name == "facility" || name == "metro" || name == "operating_system" ||
			name == "hardware_reservation" && len(v.include[name]) == 0)
	}
	if last := d.rendered.Load(); settled && last != nil && last.view == v.key && at.Before(last.until) {
		return last.text
	}
	text := encode(a.renderDevice(d, v))
	if settled {
		until := d.To.Add(passwordFor)
		if at.After(until) {
			until = at.Add(passwordFor)
		}
		d.rendered.Store(&rendering{v.key, text, until})
	}
	return text
}

// passwordFor is how long the root password is shown.
const passwordFor = 24 * time.Hour

// shownState is the state as it is told: what is queued becomes provisioning by itself.
func (d *device) shownState(at time.Time) string {
	if d.State == stateQueued && !at.Before(d.From) {
		return stateProvisioning
	}
	return d.State
}

func (a *API) renderDevice(d *device, v view) obj { return a.renderDeviceAt(d, v, now()) }

func (a *API) renderDeviceAt(d *device, v view, at time.Time) obj {
	slot := a.cfg.Slot(d.Slot)
	plan, _ := a.planOf(d.Plan)
	place := metroOf(slot.Metro)
	system, _ := a.systemOf(d.OS)
	state := d.shownState(at)
	o := obj{
		"id": d.ID, "short_id": d.ID[:8], "href": deviceHref(d.ID), "hostname": d.Hostname, "description": d.Description, "state": state,
		"tags": nonNil(d.Tags), "billing_cycle": d.BillingCycle, "user": "root", "locked": d.Locked, "created_at": d.Created,
		"updated_at": d.Updated, "userdata": d.UserData, "ipxe_script_url": d.IPXEScriptURL, "always_pxe": d.AlwaysPXE,
		"network_frozen": d.NetworkFrozen, "spot_instance": d.Spot, "termination_time": d.TerminationTime, "volumes": []obj{},
		"customdata": object(d.CustomData), "storage": object(d.Storage), "iqn": iqn(d),
		"bonding_mode": 4, "image_url": nil, "switch_uuid": a.switchOf(d.Slot), "actions": actionsIn(state),
		"sos":              d.ID + ".sos." + place.facility() + ".platformequinix.com",
		"plan":             a.embedPlan(plan, v),
		"operating_system": a.embedSystem(system, v),
		"facility":         a.embedFacility(place, v),
		"metro":            a.embedMetro(place, v),
		"project":          v.ref("project", projectHref(d.Project), a.renderProjectOf(d.Project)),
		"project_lite":     v.ref("project_lite", projectHref(d.Project), a.renderProjectOf(d.Project)),
		"created_by":       v.embed("created_by", a.userHref(), a.renderCreator),
		"ssh_keys":         refs(v, "ssh_keys", d.Keys, keyHref, a.renderKeyOf), "network_ports": a.renderPorts(d, slot, v),
		"ip_addresses": []obj{}, "hardware_reservation": nil,
		"provisioning_events": a.renderProvisioning(d, v, at),
	}
	if d.Spot {
		o["spot_price_max"] = d.SpotPriceMax
	}
	if state != stateQueued {
		o["ip_addresses"] = a.renderAddresses(d, v)
	}
	if state == stateQueued || state == stateProvisioning {
		o["provisioning_percentage"] = d.percentage(at)
	}
	if state == stateActive && at.Sub(d.To) <= passwordFor {
		o["root_password"] = a.id("password", d.Number*1000+d.Generation)[:10]
	}
	if d.Reservation != "" {
		o["hardware_reservation"] = v.ref("hardware_reservation", reservationHref(d.Reservation), func(v view) obj {
			a.mu.RLock()
			r := a.reservationAt(d.Slot, at)
			a.mu.RUnlock()
			return a.renderReservation(r, v)
		})
	}
	return o
}

func iqn(d *device) string {
	return "iqn." + d.Created.Format("2006-01") + ".net.packet:device." + d.ID[:8]
}

// renderCreator is a part of the user unless the whole is included.
func (a *API) renderCreator(v view) any {
	if v.included {
		return a.renderUser(v)
	}
	return obj{"id": a.user, "short_id": a.user[:8], "href": a.userHref(), "full_name": "Simon Ulator"}
}

// renderKeyOf renders a key by ID, if it is still there.
func (a *API) renderKeyOf(id string, v view) obj {
	a.mu.RLock()
	k := a.keys[id]
	a.mu.RUnlock()
	if k == nil {
		return hrefTo(keyHref(id))
	}
	return a.renderKey(k, v)
}

// object is raw JSON, or an empty object.
func object(raw json.RawMessage) any {
	if len(raw) == 0 {
		return obj{}
	}
	return raw
}

func portName(i int) string { return fmt.Sprintf("eth%d", i) }

func (a *API) renderPorts(d *device, slot Slot, v view) []obj {
	id := func(n int) string { return a.id(fmt.Sprintf("port %d", n), d.Slot) }
	bond := obj{
		"id": id(0), "href": Prefix + "/ports/" + id(0), "type": "NetworkBondPort", "name": "bond0", "data": obj{"bonded": true},
		"network_type": "layer3", "disbond_operation_supported": true, "virtual_networks": []obj{}, "native_virtual_network": nil,
	}
	if v.excludes("network_ports") {
		return []obj{hrefTo(Prefix + "/ports/" + id(0)), hrefTo(Prefix + "/ports/" + id(1)), hrefTo(Prefix + "/ports/" + id(2))}
	}
	ports := []obj{bond}
	for i, mac := range slot.MACs {
		ports = append(ports, obj{
			"id": id(i + 1), "href": Prefix + "/ports/" + id(i+1), "type": "NetworkPort", "name": portName(i),
			"data": obj{"mac": mac, "bonded": true}, "bond": obj{"id": id(0), "name": "bond0"}, "disbond_operation_supported": true,
			"virtual_networks": []obj{}, "native_virtual_network": nil,
		})
	}
	return ports
}
