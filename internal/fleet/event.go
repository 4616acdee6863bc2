package fleet

// Event is the kind of one row of history. History keeps the text for years: a constant may be
// added, its text never changes.
type Event string

// The events of a lease. Work has one row of history, which says how it ended, and when and why it
// began. EventStarted is what is shown of work that is under way.
const (
	// EventStarted: a session claimed the work.
	EventStarted Event = "started"
	// EventFinished: the holder did what was to be done.
	EventFinished Event = "finished"
	// EventFailed: the holder could not do it, and the process backs off.
	EventFailed Event = "failed"
	// EventCancelled: the holder handed the work back. That is no failure: nothing backs off.
	EventCancelled Event = "cancelled"
	// EventExpired: the session ended before the work did.
	EventExpired Event = "expired"
	// EventRevoked: an operator, or the end of the machine, took the work from its holder.
	EventRevoked Event = "revoked"
)

// The events of a creation.
const (
	// EventIntentOpened: the provisioner decided to ask the provider for a machine.
	EventIntentOpened Event = "intent opened"
	// EventProviderAsked: a call that may create a machine is about to be made.
	EventProviderAsked Event = "asked the provider"
	// EventProviderRefused: the provider's answer to such a call is a definite no.
	EventProviderRefused Event = "the provider refused"
	// EventCreationNotBegun: a creation failed before any call that could create something.
	EventCreationNotBegun Event = "creation not begun"
	// EventCreationUnanswered: a creation failed without an answer, so that a machine may exist.
	EventCreationUnanswered Event = "creation unanswered"
	// EventCreationRefused: a creation failed, and certainly created nothing.
	EventCreationRefused Event = "creation refused"
	// EventCreated: the provider has the machine that was asked for.
	EventCreated Event = "created"
	// EventIntentClosed: it is known how the intent ended.
	EventIntentClosed Event = "intent closed"
	// EventAdopted: a machine surfaced that carries the token of a closed intent.
	EventAdopted Event = "adopted"
	// EventAdoptionRequested: an operator wants a machine of the provider managed.
	EventAdoptionRequested Event = "adoption requested"
	// EventPenalty: a piece of capacity is not used for a while.
	EventPenalty Event = "penalty"
	// EventProviderStatus: the provider says something new of the machine's condition.
	EventProviderStatus Event = "provider status"
	// EventDiscrepancy: provider and BMDB began to disagree.
	EventDiscrepancy Event = "discrepancy"
	// EventDiscrepancyCleared: they agree again.
	EventDiscrepancyCleared Event = "discrepancy cleared"
)

// The events of an agent.
const (
	// EventTakeover: the initializer began a takeover, and numbered it.
	EventTakeover Event = "takeover"
	// EventHostKeysPinned: the machine's host keys were remembered.
	EventHostKeysPinned Event = "host keys pinned"
	// EventHostKeyRefused: the host showed another key than is known, and was sent nothing.
	EventHostKeyRefused Event = "host key refused"
	// EventHostKeyAccepted: an operator accepted the key that was refused.
	EventHostKeyAccepted Event = "host key accepted"
	// EventHostKeyTrusted: a host key was believed because nobody attested any.
	EventHostKeyTrusted Event = "host key trusted on first use"
	// EventTakeoverWarning: what the operator should know of a takeover by kexec that took place.
	EventTakeoverWarning Event = "takeover warning"
	// EventTakeoverReturned: the last takeover by kexec did not last; the old system was started
	// again.
	EventTakeoverReturned Event = "returned to the old system"
	// EventAgentStarted: the takeover succeeded.
	EventAgentStarted Event = "agent started"
	// EventAgentSpoke: the agent of a takeover was heard for the first time.
	EventAgentSpoke Event = "agent spoke"
	// EventAgentReturned: a silent agent was heard again.
	EventAgentReturned Event = "agent returned"
	// EventMachineRestarted: the agent came back with another boot ID.
	EventMachineRestarted Event = "machine restarted"
	// EventHardwareReported: the first hardware report of the machine.
	EventHardwareReported Event = "hardware reported"
	// EventHardwareChanged: a hardware report that differs from the one before, not only in what
	// changes by itself, such as temperatures.
	EventHardwareChanged Event = "hardware changed"
)

// The events of recovery.
const (
	// EventRepairStep: a step of the recovery ladder is about to be taken.
	EventRepairStep Event = "recovery step"
	// EventRepairRefused: the provider refused the step for good.
	EventRepairRefused Event = "recovery step refused"
	// EventRepaired: the machine is well after a step of the recovery ladder.
	EventRepaired Event = "recovered"
)

// The events of an install.
const (
	// EventInstallRequested: an operator or the provider's configuration wants an operating system.
	EventInstallRequested Event = "install requested"
	// EventInstallHandedOut: the agent was given an attempt.
	EventInstallHandedOut Event = "install handed out"
	// EventInstallFailed: the attempt ended without an installed disk.
	EventInstallFailed Event = "install failed"
	// EventDiskWritten: the agent wrote and verified the disk.
	EventDiskWritten Event = "disk written"
	// EventInstalled: the installed system came up.
	EventInstalled Event = "installed"
	// EventBack: a reinstall was called off before anything was written, and the installed system was
	// seen to be up again, without an agent of ours.
	EventBack Event = "back after a called-off reinstall"
	// EventUnreachable: a system that is watched has not answered for the time that the policy says.
	EventUnreachable Event = "unreachable"
	// EventReachable: it answers again.
	EventReachable Event = "reachable again"
)

// The events of an operator.
const (
	// EventRetryRequested: a backoff was forgotten.
	EventRetryRequested Event = "retry asked for"
	// EventOperationRequested: an operator, or the policy, wants something done to the machine.
	EventOperationRequested Event = "operation requested"
	// EventOperationBegun: the provider is about to be asked for it.
	EventOperationBegun Event = "operation begun"
	// EventOperationAccepted: the provider has accepted the call.
	EventOperationAccepted Event = "operation accepted"
	// EventOperationDone: there is evidence of its effect.
	EventOperationDone Event = "operation done"
	// EventOperationFailed: it was given up.
	EventOperationFailed Event = "operation failed"
	// EventOperationWithdrawn: an operator does not want it any more.
	EventOperationWithdrawn Event = "operation withdrawn"
	// EventInstallCancelled: an operator or the provider's configuration does not want the install any
	// more.
	EventInstallCancelled Event = "install cancelled"
	// EventMaintenanceBegun: an operator works on the machine.
	EventMaintenanceBegun Event = "maintenance begun"
	// EventMaintenanceEnded: it is Ironherd's again.
	EventMaintenanceEnded Event = "maintenance ended"
	// EventMarkedInstalled: an operator says that an operating system runs on the machine.
	EventMarkedInstalled Event = "marked as installed"
	// EventForgotten: the machine is gone, and an operator has taken note.
	EventForgotten Event = "forgotten"
	// EventPaused: nothing is created at the provider.
	EventPaused Event = "paused"
	// EventResumed: the pause is over.
	EventResumed Event = "resumed"
	// EventQuarantined: all work is kept away from the machine.
	EventQuarantined Event = "quarantined"
	// EventUnquarantined: the quarantine is over.
	EventUnquarantined Event = "released from quarantine"
)

// Events lists all events, so that whoever has a word for each can be checked for completeness.
func Events() []Event {
	return []Event{
		EventStarted, EventFinished, EventFailed, EventCancelled, EventExpired, EventRevoked, EventIntentOpened,
		EventProviderAsked, EventProviderRefused, EventCreationNotBegun, EventCreationUnanswered,
		EventCreationRefused, EventCreated, EventIntentClosed, EventAdopted, EventAdoptionRequested, EventPenalty,
		EventProviderStatus, EventDiscrepancy, EventDiscrepancyCleared, EventTakeover, EventHostKeysPinned,
		EventHostKeyRefused, EventHostKeyAccepted, EventHostKeyTrusted, EventTakeoverWarning,
		EventTakeoverReturned, EventAgentStarted, EventAgentSpoke, EventAgentReturned, EventMachineRestarted,
		EventHardwareReported, EventHardwareChanged, EventRepairStep, EventRepairRefused, EventRepaired,
		EventInstallRequested, EventInstallHandedOut, EventInstallFailed, EventDiskWritten, EventInstalled,
		EventBack, EventUnreachable, EventReachable,
		EventRetryRequested, EventOperationRequested, EventOperationBegun, EventOperationAccepted,
		EventOperationDone, EventOperationFailed, EventOperationWithdrawn, EventInstallCancelled,
		EventMaintenanceBegun, EventMaintenanceEnded, EventMarkedInstalled, EventForgotten, EventPaused, EventResumed, EventQuarantined,
		EventUnquarantined,
	}
}
