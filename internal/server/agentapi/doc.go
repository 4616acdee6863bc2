// Package agentapi serves the agents: their heartbeats and reports, the installs that are handed to
// them, and the word of an installed system that it is up.
//
// # Who is admitted
//
// A caller is admitted only if (machine ID, public key, takeover generation) is what the BMDB
// holds. Everybody else gets the same bytes after the same steps, whatever is wrong (key,
// certificate, machine, generation, the form of the ID): PERMISSION_DENIED, "agent not admitted";
// UNAVAILABLE while the database looks restored, because it may have lost who is to be admitted.
//
// The agent cache remembers identities for a short time, so that a repeated heartbeat costs no
// statement. Nothing durable relies on the cache: every write is fenced by the identity inside its
// own transaction, and liveness is flushed with the takeover generation that it belongs to. So an
// agent that another takeover has replaced may get answers for at most Config.Recheck, or two of
// the intervals that agents are asked for if that is longer, and can change nothing from the moment
// of the takeover.
//
// A connection is admitted when the certificate names a machine and has the key of its agent, or
// with the first call that is admitted, and is so no longer when a call is refused. Until then it
// costs next to nothing: such connections are few, of each address and in all, short, and sent
// little on. When there are too many, those that do nothing are closed for new ones, so that they
// do not keep agents out. Refusals are counted, and logged at most once a minute. However many
// call, few at a time have the BMDB asked who they are, and agents that are remembered do not wait
// for them. The others wait for their turn, and make room as those that do nothing.
//
// # What is durable when
//
// A report (hardware, install, "I am up") is committed before its call returns OK. That of an
// attempt which a restored BMDB does not know goes to the log instead. The first heartbeat of a
// takeover generation, a return from silence and a changed boot ID are committed before the answer,
// too. Only the repetition "still there" is kept in memory and flushed as ages, once a second: a
// crash may lose a second of liveness, and nothing else.
//
// A failover or a restored backup may lose what was acknowledged. When the BMDB looks restored,
// every agent's next call to a process is answered with ABORTED once. So the agent delivers its
// hardware again with its next inventory, and with its next call its first words are committed
// again.
//
// # Cut off
//
// A process that cannot write to a BMDB that others share cannot serve its agents for long. An
// agent connects anew then, and a load balancer that keeps callers where they were leads it back.
// Another process, which can write, would count the agent as silent. So after a minute the listener
// is closed until the BMDB can be written to, and agents call another process. On an engine for one
// process there is no other, and no silence counts meanwhile: the listener stays open.
//
// # Installs
//
// An attempt is committed before it is handed out. The BMDB closes it as never started when the
// agent's next heartbeat does not know of it. To spare the BMDB, a heartbeat asks it for an install
// only after a hint: a new agent, a new report, an answer that was lost, or a sweep that found the
// machine among those that want an install. The sweep runs when the BMDB wakes it, and every half
// minute besides.
//
// While an agent works at an install, each of its heartbeats asks the BMDB whether somebody wants
// that install still. So an install that was called off is told with the next answer, also to an
// agent whose attempt was given up, and again until its report has come.
//
// # Leaving
//
// An agent in memory is told to leave when a reinstall was called off before anything was written,
// and when a host of a list is given back: it restarts the machine into the system on its disk, and
// the rest is done over SSH (lifecycle/leave.go). The order is a conclusion from facts that are
// durable, made for the agent in charge at the time of the answer, and it names the takeover. It is
// given with every answer as long as it holds and the agent is heard. So an answer that is lost, a
// crash of either side and a second control plane change nothing; and who is not in charge any more
// does not get it, nor would obey it.
//
// # Load
//
// One agent can hurt only itself: messages, what they take in memory, calls, reports, lines of the
// log about what it sends, streams and connections are bounded, and the calls of one agent are
// served one after the other. So are those that come from one source and name one machine whose
// system is up, and only what is news of it is written. Whoever floods in a machine's name, from
// elsewhere, is not in its way. An agent that calls on and on though it is told that it does so too
// often, whatever it calls, loses its connection. A message is decoded before any of its other
// limits is asked, so a flood of large ones costs what reading them does. Of the connections of one
// agent the newest four stay, and none for much longer than half a day.
// The interval that agents are asked for grows with their number, so that the heartbeats of a
// second stay below Config.HeartbeatsPerSecond. An agent that installs also tells how it goes on,
// about every second, or less often where so many do that it would be more. The BMDB is told the
// longest interval that an agent may be following, and never declares silence below three of them.
package agentapi
