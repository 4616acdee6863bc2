// Package sim is one simulated world: a provider's API, machines that can be reached over SSH,
// images to install on them, and scripted faults.
//
// A World is a value. Open makes everything ready (its URL, token, project and images are known
// from then on), Run lets it live until its context ends, Close leaves nothing behind: no
// goroutine, no listener, no process.
//
// What it promises:
//
//   - The same seed gives the same world: reservations, addresses, hardware, host keys, image
//     contents, fault positions.
//   - Whatever it has acknowledged (an API mutation, an upload, a power state, an installed system)
//     is in its journal before the reply leaves. A world that was killed goes on where it was when
//     it is opened again in the same directory: same devices, same addresses and ports, same host
//     keys, disks and boot IDs.
//   - Every machine does what a machine does, at the wire: it answers SSH with its own host key
//     only while it is up, its boot ID changes with every boot and with nothing else, what ran on
//     it is gone after a reboot, and it boots an installed system only when what is on its disk,
//     read back, is the image that it is said to be.
//   - An idle machine costs a listener, and nothing else.
//
// It imitates wires and knows no package of the control plane: the agent's wire contract
// (api/agent/v1) is all that it shares.
package sim
