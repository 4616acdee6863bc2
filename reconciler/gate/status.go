package gate

import (
	"encoding/json"
	"fmt"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/release"
)

// State is how far the base resources are.
type State string

// The states.
const (
	// Working: a pass of some release may be under way, or have ended half-done. API servers that the
	// status admits may serve.
	Working State = "working"
	// Done: everything is as the status's version wants it.
	Done State = "done"
)

// Status is the announcement that API servers go by.
type Status struct {
	State State `json:"state"`
	// Version is the release whose base resources an API server must be content with. None in a status
	// that admits nobody.
	Version release.Release `json:"version"`
	// MinimumCompatible is the oldest release whose API server may serve.
	MinimumCompatible release.Release `json:"minimumCompatible"`
}

// String returns it for people.
func (s Status) String() string {
	return fmt.Sprintf("%s, version %s, minimum compatible release %s", s.State, s.Version, s.MinimumCompatible)
}

const statusLimit = 4 << 10

// Encode returns the form that is stored.
func (s Status) Encode() ([]byte, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the reconciler's status: %w", err)
	}
	return text, nil
}

// ParseStatus reads the stored form. Fields that it does not know are ignored: a newer release may
// have added them. Anything else that is not as expected is failure.Invalid.
func ParseStatus(text []byte) (Status, error) {
	var s Status
	switch err := unmarshal(text, &s); {
	case err != nil:
		return Status{}, err
	case s.State != Working && s.State != Done:
		return Status{}, fleet.Errorf(fleet.KindInvalid, "the reconciler's status has the unknown state %q", s.State)
	case s.MinimumCompatible.IsZero():
		return Status{}, fleet.Errorf(fleet.KindInvalid, "the reconciler's status has no minimum compatible release")
	case s.Version.IsZero() && s.State != Working:
		return Status{}, fleet.Errorf(fleet.KindInvalid, "the reconciler's status is done, but has no version")
	}
	return s, nil
}

func unmarshal(text []byte, into *Status) error {
	if len(text) > statusLimit {
		return fleet.Errorf(fleet.KindInvalid, "the reconciler's status has %d bytes, more than %d", len(text), statusLimit)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fleet.Errorf(fleet.KindInvalid, "the reconciler's status cannot be read: %w", err)
	}
	return nil
}

// Observed is the status as it was read.
type Observed struct {
	// Found: there is one.
	Found bool `json:"found"`
	// Unreadable says why it could not be read; empty: Status is it.
	Unreadable string `json:"unreadable,omitempty"`
	Status     Status `json:"status,omitzero"`
	// Revision of its last change, for conditional writes; 0 when there is none.
	Revision int64 `json:"revision"`
}
