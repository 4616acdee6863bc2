// Package operations does what people ask to be done to machines through their providers: the
// process operation. It reboots machines, switches them on and off, and gives them back. It also
// ends maintenances whose time is over, and asks, in the name of the policy, for machines to be
// replaced that their provider gave up. One that its provider does not give up any more, when it is
// asked, is kept, and so is one that the newest policy does not want replaced any more: the
// operation ends as failed. One that is heard is kept meanwhile, and all are while recovery is
// stopped, or while the provider has given up most of its machines.
//
// A request takes these steps, each of them in a commit of its own:
//
//	requested ─► begun ─► accepted ─► ended: evidence, or its time is over
//	    │          │          │
//	    │          │          └── the provider is asked again and again what has become of it
//	    │          └── the provider is called; it may be called again for the same attempt
//	    └── the provider is asked first: what is so already needs no call
//
// # What a failure leaves
//
//   - The process dies, or the reply is lost, before acceptance is committed: the call is made
//     again, unless evidence says that it was heard. What is asked for is idempotent but for a
//     reboot and a power cycle. These are called once more at most, and not before the first
//     call had policy.operation_timeout to show its effect (unclear.go). So a machine may be
//     restarted once more than was asked for. Then the operation ends, and says what is not known.
//     A power cycle that has left the machine off is finished by switching it on, which is
//     idempotent.
//   - The process is stopped in order before anything of the call was sent: the attempt at a
//     restart or a switch is taken back, and the next process calls at once. What was asked for
//     before it, and may still come, is then the newest attempt again: no install is handed out.
//   - The provider cannot be reached, is busy or does not let us in: the call is tried again with
//     a backoff, for give_up_after from the first try that failed. Then the operation ends as
//     failed, with the provider's words. A release is given up only after an answer: as long as the
//     provider may have heard a call, and cannot be asked for the machine, nobody knows whether it
//     is gone.
//   - The provider has accepted the call, and cannot be asked what has become of it: it is asked
//     again until it answers, however long that takes.
//   - The provider refuses for good (the state of the machine does not allow it, it cannot do it):
//     the operation ends as failed, with its words. That it makes or reinstalls the machine passes:
//     a release is tried again. So does what it says of a machine that a power cycle has left off:
//     to switch it on is tried for give_up_after.
//   - It has accepted the call, and there is no evidence within policy.operation_timeout: the
//     operation ends as failed, and says what was waited for. A release is waited for as long as
//     the provider says that it deletes the machine. After a time in which the provider could not
//     be asked it is asked twice.
//   - Somebody asks for something else meanwhile: the lease is void, and nothing of this is
//     committed (rule 8).
//
// # Giving back
//
// A machine that was given back goes, with its facts, when the provider says that it does not have
// it. A host of a list stays where it is. It is left clean instead: its agent is stopped, and the
// agent's files are removed. Where the agent is in memory nobody answers over SSH, so the attempts
// fail until the agent, which the agent API tells to leave from the first of them on, has restarted
// the host (lifecycle/leave.go).
package operations
