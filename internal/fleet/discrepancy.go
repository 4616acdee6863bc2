package fleet

// DiscrepancyKind is the way in which a provider and the BMDB disagree.
type DiscrepancyKind string

// The kinds of discrepancy.
const (
	// DiscrepancyUnknownMachine: the provider has a machine in use that the BMDB does not know.
	DiscrepancyUnknownMachine DiscrepancyKind = "unknown-machine"
	// DiscrepancyDuplicateMachine: two machines of the provider carry the token of one intent, or what
	// it lists is a machine of another provider.
	DiscrepancyDuplicateMachine DiscrepancyKind = "duplicate-machine"
	// DiscrepancyMissingMachine: the BMDB has a machine that the provider does not have.
	DiscrepancyMissingMachine DiscrepancyKind = "missing-machine"
	// DiscrepancyListLoss: the provider's list suddenly lacks so many machines that none of them is
	// believed to be gone.
	DiscrepancyListLoss DiscrepancyKind = "list-loss"
)

// DiscrepancyKinds lists all kinds, so that whoever has a word for each can be checked for
// completeness.
func DiscrepancyKinds() []DiscrepancyKind {
	return []DiscrepancyKind{
		DiscrepancyUnknownMachine, DiscrepancyDuplicateMachine, DiscrepancyMissingMachine, DiscrepancyListLoss,
	}
}

// Remedy tells an operator what to do about it, in one clause.
func (k DiscrepancyKind) Remedy() string {
	switch k {
	case DiscrepancyUnknownMachine:
		return "adopt it (`ironherd discrepancy adopt`, with `--installed` where it is in use), or remove it at the provider"
	case DiscrepancyDuplicateMachine:
		return "remove it at the provider"
	case DiscrepancyMissingMachine:
		return "forget it (`ironherd discrepancy forget`), or bring it back at the provider"
	case DiscrepancyListLoss:
		return "find out what happened to the list, which counts again when most of its machines are back; give back those that are really gone (`ironherd machine release`)"
	}
	return ""
}
