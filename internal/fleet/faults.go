package fleet

import (
	"fmt"
	"strings"
)

// JoinFaults returns one error of KindInvalid that names every fault of what somebody has given. It
// returns nil where there is none.
func JoinFaults(faults []error) error {
	switch len(faults) {
	case 0:
		return nil
	case 1:
		return Errorf(KindInvalid, "%w", faults[0])
	}
	return Errorf(KindInvalid, "%w", fmt.Errorf("%d things are wrong: %w", len(faults), faultList(faults)))
}

// faultList is several faults in one line.
type faultList []error

func (l faultList) Error() string {
	parts := make([]string, len(l))
	for i, fault := range l {
		parts[i] = fault.Error()
	}
	return strings.Join(parts, "; ")
}
