package webui

import "github.com/ironherd/ironherd/internal/fleet"

// The tables below have a word or a class for everything in the vocabulary of package fleet; a test
// holds them to that. What a newer control plane adds to the vocabulary is shown as it came.

// discrepancies tells in a few words what a provider and the database disagree about.
var discrepancies = map[fleet.DiscrepancyKind]string{
	fleet.DiscrepancyUnknownMachine:   "in use there, unknown here",
	fleet.DiscrepancyDuplicateMachine: "one machine or host twice",
	fleet.DiscrepancyMissingMachine:   "known here, missing there",
	fleet.DiscrepancyListLoss:         "most machines are missing from its list",
}

func discrepancyWords(kind string) string {
	if words, ok := discrepancies[fleet.DiscrepancyKind(kind)]; ok {
		return words
	}
	return kind
}

var processes = map[fleet.Process]string{
	fleet.ProcessProvision:  "Creates machines at a provider.",
	fleet.ProcessAgentStart: "Puts our agent in charge of a machine.",
	fleet.ProcessInstall:    "Writes an operating system; done by the agent.",
	fleet.ProcessOperation:  "Carries out what a person asked for: reboot, power, release.",
	fleet.ProcessRecovery:   "Repairs a machine that is not heard of.",
	fleet.ProcessProbe:      "Asks installed systems whether they are up.",
	fleet.ProcessUpdate:     "Refreshes what is known from a provider.",
}

func processMeaning(process string) string { return processes[fleet.Process(process)] }

func verdictClass(verdict string) string {
	switch verdict {
	case "running", "due":
		return "v-now"
	case "later":
		return "v-later"
	case "waiting":
		return "v-waiting"
	}
	return "v-none"
}

// The classes of events: their colours are in the style sheet.
const (
	eventGood = "e-good" // what was wanted has been reached
	eventBad  = "e-bad"  // something failed, or was lost
	eventWarn = "e-warn" // somebody stepped in, or something is not as usual
	eventFact = "e-fact" // one step among others
)

var eventClasses = map[fleet.Event]string{
	fleet.EventStarted:   eventFact,
	fleet.EventFinished:  eventGood,
	fleet.EventFailed:    eventBad,
	fleet.EventCancelled: eventWarn,
	fleet.EventExpired:   eventBad,
	fleet.EventRevoked:   eventWarn,

	fleet.EventIntentOpened:       eventFact,
	fleet.EventProviderAsked:      eventFact,
	fleet.EventProviderRefused:    eventBad,
	fleet.EventCreationNotBegun:   eventBad,
	fleet.EventCreationUnanswered: eventBad,
	fleet.EventCreationRefused:    eventBad,
	fleet.EventCreated:            eventGood,
	fleet.EventIntentClosed:       eventFact,
	fleet.EventAdopted:            eventWarn,
	fleet.EventAdoptionRequested:  eventGood,
	fleet.EventPenalty:            eventWarn,
	fleet.EventProviderStatus:     eventFact,
	fleet.EventDiscrepancy:        eventBad,
	fleet.EventDiscrepancyCleared: eventGood,

	fleet.EventTakeover:         eventFact,
	fleet.EventHostKeysPinned:   eventFact,
	fleet.EventHostKeyTrusted:   eventWarn,
	fleet.EventTakeoverWarning:  eventWarn,
	fleet.EventTakeoverReturned: eventWarn,
	fleet.EventHostKeyRefused:   eventWarn,
	fleet.EventHostKeyAccepted:  eventWarn,
	fleet.EventAgentStarted:     eventGood,
	fleet.EventAgentSpoke:       eventGood,
	fleet.EventAgentReturned:    eventGood,
	fleet.EventMachineRestarted: eventWarn,
	fleet.EventHardwareReported: eventFact,
	fleet.EventHardwareChanged:  eventWarn,

	fleet.EventInstallRequested: eventFact,
	fleet.EventInstallHandedOut: eventFact,
	fleet.EventInstallFailed:    eventBad,
	fleet.EventDiskWritten:      eventGood,
	fleet.EventInstalled:        eventGood,
	fleet.EventUnreachable:      eventBad,
	fleet.EventReachable:        eventGood,
	fleet.EventBack:             eventGood,

	fleet.EventRepairStep:    eventWarn,
	fleet.EventRepairRefused: eventWarn,
	fleet.EventRepaired:      eventGood,

	fleet.EventOperationRequested: eventFact,
	fleet.EventOperationBegun:     eventFact,
	fleet.EventOperationAccepted:  eventFact,
	fleet.EventOperationDone:      eventGood,
	fleet.EventOperationFailed:    eventBad,
	fleet.EventOperationWithdrawn: eventFact,

	fleet.EventRetryRequested:   eventFact,
	fleet.EventInstallCancelled: eventWarn,
	fleet.EventMaintenanceBegun: eventFact,
	fleet.EventMaintenanceEnded: eventFact,
	fleet.EventMarkedInstalled:  eventWarn,
	fleet.EventForgotten:        eventWarn,
	fleet.EventPaused:           eventWarn,
	fleet.EventResumed:          eventFact,
	fleet.EventQuarantined:      eventWarn,
	fleet.EventUnquarantined:    eventFact,
}

func eventClass(event string) string {
	if class, ok := eventClasses[fleet.Event(event)]; ok {
		return class
	}
	return eventFact
}
