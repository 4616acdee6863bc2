package fleet

import "time"

// TurnRequest asks for turns to call a provider, of all that share a limit on how often it may be
// called. Its instants are by the clock of the process that asks.
type TurnRequest struct {
	// Limit names what the calls count against. Who names the same limit shares it.
	Limit string
	// Spacing is the time from one turn to the next.
	Spacing time.Duration
	// Count is how many turns are wanted, one behind the other. Zero: none, the answer alone is.
	Count int
	// Lead is how far ahead the first of them must be: the time that the answer takes to get here.
	Lead time.Duration
	// Latest is when the first of them is of use at the latest. Zero: whenever it is.
	Latest time.Time
	// NotBefore is until when the provider wants no call, of anybody. Zero: it has not said so.
	NotBefore time.Time
}

// TurnGrant answers a TurnRequest, by the same clock.
type TurnGrant struct {
	// First of the turns; the others follow it. Zero when none were reserved: none were wanted, or the
	// first one would have come too late.
	First time.Time
	// Next is the first turn that nobody has. Zero: nobody has asked yet.
	Next time.Time
	// NotBefore is until when nobody may call, whatever turns it has. Zero: no provider has said so.
	NotBefore time.Time
}
