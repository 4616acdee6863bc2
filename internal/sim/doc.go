// Package sim is one simulated world: a provider's API, machines that can be reached over SSH,
// images to install on them, and scripted faults.
//
// A World is a value. Open prepares it; its URL, token, project and images are known from then on.
// Run runs it until the context ends. Close leaves nothing behind: no goroutine, no listener, no
// process.
//
// What it promises:
//
//   - The same seed gives the same machines: addresses, hardware, image contents, fault positions.
//     What the provider numbers (projects, reservations, devices) has IDs of its own in each world,
//     and so have host keys.
//   - A change (an API mutation, an upload, a power state, an installed system) is in the journal
//     before its reply leaves. A world that was killed goes on where it was when it is opened again
//     in the same directory: same devices, same addresses and ports, same host keys, disks and boot
//     IDs.
//   - A machine behaves like a real one at the wire. It answers SSH with its own host key, and only
//     while it is up. Its boot ID changes with every boot and with nothing else. A reboot ends what
//     ran on it. It boots an installed system only if its disk, read back, holds the image that the
//     first-boot area names.
//   - An idle machine costs one listener.
//
// The world imitates protocols, and imports no package of the control plane: the agent's wire
// contract (api/agent/v1) is all that they share.
package sim
