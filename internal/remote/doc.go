// Package remote reaches machines over SSH: it dials, verifies the host key, uploads content and
// executes commands.
//
// It promises:
//
//   - The host key is verified always, by the best source there is: attested by the provider, else
//     injected at creation, else pinned from an earlier contact, else trusted on first use where
//     that is allowed. Nothing that identifies us or our work (no user name, no public key, no
//     command) is sent to a host with another key.
//   - A hung host never hangs the caller: every call ends when its context does, or when one step
//     of it takes longer than a step may, and the connection is closed then. Nothing stays behind,
//     neither a goroutine nor a descriptor.
//   - A fault of a jump host is told from one of the host behind (a *JumpHostError), and a dialer
//     has few logins to one jump host under way at once.
//   - A host that writes without end is left: whatever it writes is bounded. What it writes before
//     the answer to a command is not taken for the answer.
//   - An uploaded file appears under its name only when it has the digest of what was sent, and
//     only in a directory that nobody but root and the user can write to.
//   - A host without SFTP that works gets files through its shell, with the same checks.
//   - Errors show a host's words in quotes, on one line and bounded, with what to do where that is
//     known.
//
// Errors are of the kinds of package fleet: Forbidden for a host key that is not the expected one
// (a *HostKeyError), Unauthenticated when the host refuses our key, Timeout when it does not answer
// in time, Temporary when it cannot be reached or the connection breaks, Invalid when it writes
// something else than an answer or too much, Unsupported when it lets nobody in but by password, or
// executes none of our programs.
//
// Nothing here reads an SSH configuration, an agent or known_hosts. One Host is one connection; it
// is not reused after an error other than an *ExitError.
package remote
