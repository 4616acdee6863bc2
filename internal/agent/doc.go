// Package agent is the program that runs on a managed machine. A takeover (package takeover) puts
// it in charge. It then proves its key to the control plane, sends heartbeats, reports the hardware
// (package inventory) and installs an operating system (package install).
//
// Main is the whole program, and Run its long-lived part. cmd/ironherd-agent calls Main for the
// real machine; a simulator calls it for any number of simulated machines in one process.
//
// # The session with the control plane
//
// One loop sends heartbeats over one connection, one at a time. It sends the next one after the
// interval that the last answer named. It sends one at once when an install has progressed (at most
// once a second) or ended, and when the hardware has changed. Only its context, a newer takeover of
// this host, in memory an order to leave, and the machine going down end the loop:
//
//   - When a call fails, the loop drops the connection and tries again, with full jitter, at
//     intervals of up to half a minute. Nothing below the loop retries. Each call has a deadline,
//     which also finds connections that are dead without saying so.
//   - When the control plane refuses a call (PERMISSION_DENIED), the loop tries again soon, and
//     then ever more slowly: the control plane may not have committed the takeover yet, or may be
//     getting a new database. It does not tell an agent that it is superseded; the agent finds that
//     out from the state on its own host.
//   - When the control plane does not accept a hardware report, the heartbeats go on without it.
//
// A report is delivered when the call that carried it has returned OK. Until then the loop repeats
// a hardware report, and keeps an install report in the state file. After a call that failed, the
// next inventory delivers the hardware again: the control plane's database may have lost it.
//
// # Leaving
//
// An agent in memory that is told to leave restarts the machine into the system on its disk, as it
// does without contact, and leaves the reason in the firmware. It obeys only an order that names
// its own takeover, and only while nothing is installed, no report waits, and no install has begun
// to write a disk under it. The order is repeated, so there is nothing to keep. An agent in place
// is not told: it is stopped over SSH (`ironherd-agent leave`).
//
// # Installs
//
//	request → recorded as running (durably) → install → report recorded → delivered
//	        → failed: forgotten; ok: reboot, or kexec where the request wants it
//
// The agent refuses a request unless its (install generation, attempt) is above the last that it
// recorded. So each attempt starts at most once, whatever is repeated or delayed. A newer request
// ends a running install. An agent that starts and finds an install recorded as running reports it
// as failed.
//
// Nothing reboots the machine before the control plane has acknowledged the success. A report of
// success stays in the state until the machine has gone down, because only then is it certain that
// the reboot took place. An agent that is started again before that delivers it again.
package agent
