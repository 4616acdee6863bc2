// Package takeover puts the agent in charge of a machine, and keeps the agent's state there.
//
// # What is authoritative
//
// Everything lies on the host, below a root that is "/" except in simulations and tests:
//
//	/var/lib/ironherd-agent/
//	    state          AgentState, mode 0600: who is in charge, the key, the newest install
//	    state.lock     flock held for each change of the state
//	    takeover.lock  flock held by the one takeover that is under way
//	/run/ironherd-agent/
//	    agent.pid      flock held by the one agent that runs, with its process ID inside
//
// A change writes a new file, syncs it, renames it and syncs the directory, so that the state is
// always the old one or the new one. The takeover generation in it is the last that this host has
// seen. A change names the machine ID and the takeover generation of the agent that makes it. It
// fails with ErrSuperseded once a newer takeover has written its own: an agent that was replaced
// cannot write any more, even before it was stopped.
//
// A takeover generation counts the takeovers of one machine, so a takeover for another machine ID
// starts anew: the host belongs to another record now, and the installs of the old one mean nothing
// to it.
//
// # Order, and what a crash leaves
//
//		lock → read and compare → write the new state → stop the previous agent
//		     → start the new one → it is ready → answer
//
//	  - Before the new state is written: nothing has changed, and the previous agent goes on.
//	  - After it: the previous agent is fenced. It ends at its next heartbeat, if it was not stopped.
//	    No agent is left. The control plane, which has no answer, sends a takeover with a higher
//	    generation.
//	  - After the start: an agent runs that the control plane does not admit, because it never learnt
//	    its key. The next takeover replaces it. An agent that cannot report that it is ready, because
//	    nobody listens any more, ends by itself.
//	  - The answer is lost: the same. A takeover by kexec does not jump where the answer could not be
//	    written: the old system goes on, and no agent is left. Where it was written and got lost on
//	    the way, the agent in memory restarts the machine after its contact limit.
//
// If the previous agent was in the middle of an install, the state says so, and the new agent
// reports that install as failed. The new agent also delivers a report that was not acknowledged.
package takeover
