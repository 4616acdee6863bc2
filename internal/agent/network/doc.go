// Package network carries the network of a host over to another system on the same machine: Capture
// reads it from the kernel, and Apply makes it again.
//
// What is carried: hardware interfaces that are up, and the bonds, VLANs and bridges over them;
// their names, MTU and addresses; the routes of the main table; name servers and hosts. Interfaces
// are told apart by their own MAC address; one that was set by hand is set again. What is not
// carried is told as a warning: other kinds of virtual interfaces and what stands on them alone,
// rules and tables of policy routing, encapsulated routes. Bridges that lead to containers and
// virtual machines of the host alone are left out untold.
//
// An address that came with a lifetime (from DHCP or a router) is carried without it, and so stays
// when nobody renews it. Keep asks DHCP for those of IPv4 when half of that life is over, and again
// and again after that. It takes the same address or another one, as the server likes. A system
// that named itself to its server by more than its MAC address may get another one. IPv6 routers
// are listened to as before.
//
// Where nothing can be carried over, where an interface does not turn up again, and where what was
// carried does not lead to the control plane, Apply asks for addresses by DHCP on every interface
// that has a link, and takes what the first one gets. Keep goes on with that: it asks on one
// interface after the other until the agent is admitted, and renews what it got. What was carried
// over stays in the kernel meanwhile, and Keep goes back to it when it leads to the control plane
// after all. Apply fails only when the host has no network at all; everything short of that is a
// warning.
package network
