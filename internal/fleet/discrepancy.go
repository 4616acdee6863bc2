package fleet

import "fmt"

// DiscrepancyKind is the way in which a provider and the BMDB disagree.
type DiscrepancyKind string

// The kinds of discrepancy.
const (
	// DiscrepancyUnknownMachine: the provider has a machine in use that the BMDB does not know.
	DiscrepancyUnknownMachine DiscrepancyKind = "unknown-machine"
	// DiscrepancyDuplicateMachine: two machines of the provider carry the token of one intent, or what
	// it lists is a machine of another provider, or of its own under another ID.
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

// Remedy tells an operator what to do about the one of that machine at the provider, in one clause.
func (k DiscrepancyKind) Remedy(provider ProviderName, id ProviderID) string {
	switch k {
	case DiscrepancyUnknownMachine:
		return fmt.Sprintf("adopt it (`ironherd discrepancy adopt %s %s --reason WHY`, with `--installed` where it is in use), or remove it at the provider", provider, id)
	case DiscrepancyDuplicateMachine:
		return "remove it at the provider"
	case DiscrepancyMissingMachine:
		return fmt.Sprintf("forget it (`ironherd discrepancy forget %s %s --reason WHY`), or bring it back at the provider", provider, id)
	case DiscrepancyListLoss:
		return "find out what happened to the list, which counts again when most of its machines are back; give back those that are really gone " +
			"(`ironherd machine release MACHINE --reason WHY`)"
	}
	return ""
}

// RemedyOfToken is the remedy of an unknown machine that carries the token of an Ironherd.
func RemedyOfToken(provider ProviderName, id ProviderID) string {
	return "neither remove nor adopt it before it is known which: where another control plane has it, give each a project of its own; " +
		"where this database has lost it, " + DiscrepancyUnknownMachine.Remedy(provider, id)
}
