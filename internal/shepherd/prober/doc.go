// Package prober asks installed systems whether they are up: the process probe. Package lifecycle
// says which machine is asked, and when; this package asks once, and records what it has found.
//
//   - SSH: it connects, exchanges versions and keys, and leaves. The system is up if it owns the
//     host key that its install brought, or one that a person has accepted since. It is told no
//     user name and no key of ours. A system with another key is not up: that key is recorded as
//     refused, and `ironherd machine host-key accept` accepts it.
//   - HTTP: it sends one GET to the machine's own address. The system is up if the answer has a
//     status from 200 to 399. A redirect is an answer and is not followed, no body is read, and
//     nothing that identifies us is sent. The certificate of an https URL is verified.
//
// # What is promised
//
//   - A probe is bounded in time and in bytes, and ends with the lease of its work.
//   - It resolves no name: whatever a URL is called, the connection goes to the machine's address,
//     where its provider says that it is reached.
//   - It changes nothing on the machine. Nothing that it finds has a machine restarted by this
//     package; of a system that never came up, package lifecycle says what follows.
//   - What keeps us from asking (a packet filter of our own host, no route from here, no free
//     descriptor), and what is wrong with the jump host or with the list, says nothing of the
//     machine: the work fails, and is tried again after a backoff. History and log tell each cause
//     once, and `ironherd status` tells what lasts.
//
// # What a failure leaves
//
// The process dies, or its lease is lost, before the finding is committed: nothing is known of that
// probe, and the next one is due when the session has ended. The reply to the commit is lost: the
// fact names its work, so the repetition finds it done.
package prober
