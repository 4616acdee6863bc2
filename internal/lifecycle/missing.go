package lifecycle

import (
	"fmt"
	"slices"

	"github.com/ironherd/ironherd/internal/fleet"
)

// EndOfMissing says what ends it that the provider does not have the machine. A list that lacks a
// host says nothing of the host. It may be there under another ID, or on another list: whoever has
// the machine forgotten has the host taken in anew, which ends what runs on it.
func EndOfMissing(r fleet.Record) string {
	if Listed(r) {
		return fmt.Sprintf("put its host back on the list as %s, or see `ironherd discrepancy list`", r.ProviderID)
	}
	return fmt.Sprintf("`ironherd machine forget %s --reason WHY` removes it here", r.ID)
}

// Listed reports whether the machine is a host of a list, which stays where it is when it is given
// back.
func Listed(r fleet.Record) bool { return slices.Contains(r.Levers, fleet.LeverClean) }
