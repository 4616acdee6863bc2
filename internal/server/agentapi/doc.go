// Package agentapi serves the agents: their heartbeats and reports, the installs that are handed to
// them, and the word of an installed system that it is up.
//
// # Who is admitted
//
// A caller is admitted only if (machine ID, public key, takeover generation) is what the BMDB
// holds. Everybody else (wrong key, no certificate, unknown machine, superseded agent, an ID that
// is none) takes the same way through the code and gets the same bytes: PERMISSION_DENIED, "agent
// not admitted".
//
// Identities are remembered for a short time, so that a repeated heartbeat costs no statement. What
// is remembered is never trusted for anything that lasts: every durable write is fenced by the
// identity inside its own transaction, and liveness is flushed with the generation that it belongs
// to. So a superseded agent can be answered for at most Config.Recheck, and can change nothing from
// the moment it was superseded.
//
// # What is durable when
//
// A report (hardware, install, "I am up") is committed before its call returns OK. The first
// heartbeat of a takeover generation, a return from silence and a changed boot ID are committed
// before the answer, too. Only the repetition "still there" is kept in memory and flushed as ages,
// once a second: a crash may lose a second of liveness, and nothing else.
//
// # Installs
//
// An attempt is committed before it is handed out; the BMDB closes it as never started when the
// agent, asked next, does not know of it. Whether the BMDB is asked at all is a matter of hints: a
// new agent, a new report, an answer that was lost, and a sweep over the machines that want an
// install, which runs when the BMDB wakes it and every half minute besides.
//
// # Load
//
// One agent can hurt only itself: messages, calls, reports, streams and connections are bounded,
// and calls of one agent are served one after the other. The interval that agents are asked for
// grows with their number, so that the heartbeats of a second stay below
// Config.HeartbeatsPerSecond; what has been promised to agents is told to the BMDB, which never
// declares silence below three such intervals.
package agentapi
