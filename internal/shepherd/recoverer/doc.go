// Package recoverer repairs machines that are not heard of: the process recovery. Package lifecycle
// says which step of the recovery ladder is due, and when; this package takes it:
//
//	reboot ─► power cycle ─► reinstall ─► quarantine
//
// (The first step, another start of the agent, is the initializer's work.)
//
// For each step that needs the provider, it
//
//  1. asks the provider for the machine: a provider that does not answer costs no step, and what it
//     says anew is recorded, and decided upon, first;
//  2. commits the step, which the BMDB refuses unless it is due still;
//  3. reads the machine once more: one that has reported meanwhile is left alone, and the step is
//     taken back;
//  4. calls the provider once.
//
// Whether a step has helped is told by what is heard of the machine afterwards, not here.
//
// # What a failure leaves
//
//   - The process dies before the step is committed: nothing happened.
//   - It dies after that, or the reply is lost: the step counts, done or not. If nothing is heard
//     of the machine, the next step is due after policy.recovery_step_timeout. So a machine is
//     never rebooted twice for one step.
//   - The call was never sent (there was no connection, it had no turn in time): the step is taken
//     back, and tried again with a backoff. So it is when the process is stopped before that.
//   - The provider did nothing, for a reason that is not the machine's (throttled, not allowed):
//     the same.
//   - The provider refused the step for good (the machine's state does not allow it, it cannot do
//     it): the step counts, history says why, and the ladder goes on. A power cycle that was
//     refused has left nothing off.
//   - A power cycle ended half-way, and the machine is off: it is switched on before the next
//     step.
//
// A lease that is lost ends the call, and commits nothing (rule 5).
package recoverer
