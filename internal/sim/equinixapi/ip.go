package equinixapi

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
)

// address is one address of a device: at most one public of each family, and a private one of IPv4.
type address struct {
	Family int  `json:"family"`
	Public bool `json:"public"`
	// CIDR is the length of the prefix.
	CIDR int `json:"cidr"`
}

// defaultAddresses are those of a device whose creation named none.
func defaultAddresses() []address { return []address{{4, true, 31}, {6, true, 127}, {4, false, 31}} }

// addressRequest asks for an address.
type addressRequest struct {
	AddressFamily  int   `json:"address_family"`
	Public         *bool `json:"public"`
	CIDR           int   `json:"cidr"`
	IPReservations names `json:"ip_reservations"`
}

// address is what is asked for, with what was left out.
func (q addressRequest) address() address {
	a := address{Family: q.AddressFamily, Public: q.Public == nil || *q.Public, CIDR: q.CIDR}
	if a.CIDR == 0 {
		a.CIDR = 31
		if a.Family == 6 {
			a.CIDR = 127
		}
	}
	return a
}

func (q *createRequest) addresses() []address {
	list := defaultAddresses()
	if len(q.IPAddresses) > 0 {
		list = nil
		for _, r := range q.IPAddresses {
			list = append(list, r.address())
		}
	}
	for i := range list {
		if list[i].Public && list[i].Family == 4 && q.PublicSubnet != 0 {
			list[i].CIDR = q.PublicSubnet
		}
	}
	return list
}

// wrongAddresses says everything that is wrong with the addresses that a request asks for.
func (q *createRequest) wrongAddresses() []string {
	var wrong []string
	check := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	check(q.PublicSubnet == 0 || q.PublicSubnet >= 28 && q.PublicSubnet <= 32, "public_ipv4_subnet_size must be from 28 to 32, not %d", q.PublicSubnet)
	seen := map[address]bool{}
	for i, r := range q.IPAddresses {
		a := r.address()
		kind := address{Family: a.Family, Public: a.Public}
		check(!seen[kind], "ip_addresses[%d] asks for the same kind of address twice", i)
		seen[kind] = true
		switch a.Family {
		case 4:
			check(a.CIDR >= 28 && a.CIDR <= 32, "ip_addresses[%d].cidr must be from 28 to 32, not %d", i, a.CIDR)
		case 6:
			check(a.Public, "ip_addresses[%d]: there are no private IPv6 addresses", i)
			check(a.CIDR >= 124 && a.CIDR <= 127, "ip_addresses[%d].cidr must be from 124 to 127, not %d", i, a.CIDR)
		default:
			check(false, "ip_addresses[%d].address_family must be 4 or 6, not %d", i, a.Family)
		}
		check(len(r.IPReservations) == 0, "ip_addresses[%d].ip_reservations: there are no IP reservations here", i)
	}
	check(len(q.IPAddresses) == 0 || seen[address{Family: 4}], "ip_addresses must have a private IPv4 address")
	return wrong
}

// at is where a slot has an address of this kind.
func (a address) at(slot Slot) netip.Addr {
	switch {
	case a.Family == 6:
		return slot.PublicV6
	case a.Public:
		return slot.PublicV4
	}
	return slot.PrivateV4
}

// renderAddresses lists the addresses of a device; it has none while it is queued.
func (a *API) renderAddresses(d *device, v view) []obj {
	slot := a.cfg.Slot(d.Slot)
	bare := v.excludes("ip_addresses")
	v = v.below("ip_addresses")
	list := make([]obj, 0, 3)
	for i, kind := range d.addresses() {
		ip := kind.at(slot)
		id := a.id(fmt.Sprintf("address %d", i), d.Number)
		href := Prefix + "/ips/" + id
		if bare {
			list = append(list, hrefTo(href))
			continue
		}
		network := netip.PrefixFrom(ip, kind.CIDR).Masked().Addr()
		list = append(list, obj{
			"id": id, "href": href, "address": ip.String(), "address_family": kind.Family, "network": network.String(),
			"gateway": network.String(), "netmask": netmask(kind), "cidr": kind.CIDR, "public": kind.Public, "management": true,
			"manageable": true, "enabled": true, "global_ip": false, "created_at": d.From, "tags": []string{},
			"assigned_to": v.ref("assigned_to", deviceHref(d.ID), func(v view) obj { return a.renderDevice(d, v) }),
			"project":     v.ref("project", projectHref(d.Project), a.renderProjectOf(d.Project)),
			"metro":       a.embedMetro(metroOf(slot.Metro), v),
		})
	}
	return list
}

// addresses are the kinds of address that a device has.
func (d *device) addresses() []address {
	if len(d.Addresses) == 0 { // recorded before addresses could be chosen
		return defaultAddresses()
	}
	return d.Addresses
}

func netmask(a address) string {
	bits := 32
	if a.Family == 6 {
		bits = 128
	}
	return net.IP(net.CIDRMask(a.CIDR, bits)).String()
}

func (a *API) listDeviceAddresses(w http.ResponseWriter, r *http.Request) {
	d, ok := a.deviceOf(r.PathValue("id"))
	if !ok {
		writeError(w, errNotFound)
		return
	}
	writeJSON(w, http.StatusOK, obj{"ip_addresses": a.shownAddresses(d, viewOf(r).within("ip_addresses"))})
}

// shownAddresses are the addresses that a device has by now.
func (a *API) shownAddresses(d *device, v view) []obj {
	if d.shownState(now()) == stateQueued {
		return []obj{}
	}
	return a.renderAddresses(d, v)
}

func (a *API) listProjectAddresses(w http.ResponseWriter, r *http.Request) {
	v := viewOf(r).within("ip_addresses")
	list := []obj{}
	for _, d := range a.devicesIn(r.PathValue("id")) {
		list = append(list, a.shownAddresses(d, v)...)
	}
	writePage(a, w, r, "ip_addresses", list, encodeObject)
}

func (a *API) getAddress(w http.ResponseWriter, r *http.Request) {
	v := viewOf(r).within("ip_addresses")
	for _, d := range a.devicesIn("") {
		list := a.shownAddresses(d, v)
		if i := slices.IndexFunc(list, func(o obj) bool { return o["id"] == r.PathValue("id") }); i >= 0 {
			writeJSON(w, http.StatusOK, list[i])
			return
		}
	}
	writeError(w, errNotFound)
}
