package fleet

import "slices"

// Verb is what an operator asks to be done to machines. What is done through the provider is an
// Operation, too, under the same name.
type Verb string

// The verbs.
const (
	VerbReboot     = Verb(OperationReboot)
	VerbPowerOn    = Verb(OperationPowerOn)
	VerbPowerOff   = Verb(OperationPowerOff)
	VerbPowerCycle = Verb(OperationPowerCycle)
	VerbRelease    = Verb(OperationRelease)
	VerbReplace    = Verb(OperationReplace)
	// VerbWithdraw ends an operation that the provider has not accepted.
	VerbWithdraw Verb = "withdraw"
	// VerbReinstall installs over whatever the machine has.
	VerbReinstall Verb = "reinstall"
	// VerbCancelInstall calls the newest install off.
	VerbCancelInstall Verb = "cancel-install"
	// VerbQuarantine keeps all work away from the machine, until VerbUnquarantine.
	VerbQuarantine   Verb = "quarantine"
	VerbUnquarantine Verb = "unquarantine"
	// VerbBeginMaintenance keeps everything away from the host and makes its silence expected, until
	// VerbEndMaintenance or an instant.
	VerbBeginMaintenance Verb = "begin-maintenance"
	VerbEndMaintenance   Verb = "end-maintenance"
	// VerbMarkInstalled says that an operating system runs on the machine that is to be left alone.
	VerbMarkInstalled Verb = "mark-installed"
	// VerbForget removes a machine that its provider does not have any more, or whose provider nobody
	// serves any more.
	VerbForget Verb = "forget"
)

// Verbs lists all verbs in the order in which they are shown.
func Verbs() []Verb {
	return []Verb{
		VerbReboot, VerbPowerOn, VerbPowerOff, VerbPowerCycle, VerbRelease, VerbReplace, VerbWithdraw, VerbReinstall, VerbCancelInstall,
		VerbQuarantine, VerbUnquarantine, VerbBeginMaintenance, VerbEndMaintenance, VerbMarkInstalled, VerbForget,
	}
}

// ParseVerb returns the verb of that name, or an error of kind Invalid that lists the names.
func ParseVerb(s string) (Verb, error) {
	if v := Verb(s); slices.Contains(Verbs(), v) {
		return v, nil
	}
	return "", Errorf(KindInvalid, "no verb is named %q: use one of %s", s, Names(Verbs()))
}

// Operation returns the operation that the verb asks for; false where it asks for none.
func (v Verb) Operation() (Operation, bool) {
	o := Operation(v)
	return o, slices.Contains(Operations(), o)
}

// MaxReason bounds what an operator gives as the reason of a verb, in bytes.
const MaxReason = 500
