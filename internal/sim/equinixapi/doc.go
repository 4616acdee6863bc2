// Package equinixapi is the API of an Equinix-Metal-compatible provider, as its clients meet it.
//
// It holds what a provider knows (projects, SSH keys, reservations, devices and their events) and
// moves devices through their states; what a device is made of is behind the Hardware interface. It
// answers over HTTP as the real service did, with its quirks: paging links without the path prefix,
// references as bare hrefs unless included, 503 as the business answer "no reservation is free".
// Where Config says so, lists come in no order, and what is gone is answered with 403, or is named
// by its reservation still. What a request asks for is honoured or refused: no query parameter and
// no include is ignored.
//
//	POST ─► queued ─► provisioning ─► active ─► powering_off ─► inactive ─► powering_on ─► active
//	                       │            │└─ reinstalling ─► active
//	                       ▼            └─ DELETE ─► gone at once; its hardware is free after
//	                     failed                      deprovisioning
//
// A reinstall that fails ends as failed, too. A reboot is no state: the device stays active.
//
// The API passes every change to Config.Commit before it answers, and before anybody can see the
// change. An error of Commit is a 500 and changes nothing. State is a set of immutable values under
// one lock, so that requests read a consistent picture and never wait for each other's rendering. A
// process that was killed finds its devices where they were (Config.State). A transition that was
// under way ends at the instant that was chosen for it, even if that has passed meanwhile.
package equinixapi
