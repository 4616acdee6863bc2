// Package agent is the program that runs on a managed machine: it is put in charge (package
// takeover), proves its key to the control plane, sends heartbeats, reports the hardware (package
// inventory) and installs an operating system (package install).
//
// Main is the whole program; cmd/ironherd-agent calls it with the real machine, a simulator with
// machines made of files, as many as it likes in one process. Run is the long-lived part.
//
// # The session with the control plane
//
// One loop sends heartbeats over one connection, one at a time, at the interval that the last
// answer promised, and at once when there is news: an install that moved (at most once a second) or
// ended, hardware that changed. Nothing ends the loop but its context, a newer takeover of this
// host, or the machine going down:
//
//   - A call that fails drops the connection and is repeated, with full jitter, at intervals of up
//     to half a minute. There is no other retry underneath. A call has a deadline, which also finds
//     connections that are dead without saying so.
//   - A refusal (PERMISSION_DENIED) is repeated too, soon at first and then slowly: the control
//     plane may not have committed the takeover yet, or may be getting a new database. A superseded
//     agent is not told so by the control plane; it finds out from the state on its own host.
//   - A hardware report that the control plane will not take does not keep the heartbeats from it.
//
// What was sent counts as delivered when the call returned OK. A hardware report is sent until
// then; an install report is kept in the state file until then.
//
// # Installs
//
//	request → recorded as running (durably) → install → report recorded → delivered → failed: forgotten; ok: reboot
//
// A request is refused unless its (install generation, attempt) is above the last that was
// recorded, so that each starts at most once, whatever is repeated or delayed. A newer request ends
// a running install. An agent that starts and finds one recorded as running reports it as failed. A
// report of success stays in the state, and is delivered again by an agent that is started again,
// until the machine has gone down: only then is it certain that the reboot that follows the
// delivery took place. Nothing reboots the machine before the control plane has acknowledged the
// success.
package agent
