package fleet

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/google/uuid"
)

// MachineID is the UUID (version 7, canonical text form) that a machine keeps for life.
type MachineID string

// SessionID is the UUID (version 7, canonical text form) of one session of one component.
type SessionID string

// ProviderName names a configured provider instance.
type ProviderName string

// ProviderID is the provider's own name for one of its machines. Opaque; unique within a provider
// instance.
type ProviderID string

// CapacityID is the provider's own name for one piece of capacity, such as a hardware reservation.
// Opaque; unique within a provider instance.
type CapacityID string

// Token marks what an intent creates. It travels to the provider with the request, and the device
// carries it from then on. Opaque, at most 63 bytes of [a-z0-9-].
type Token string

// NewMachineID returns a new, time-ordered machine ID.
func NewMachineID() MachineID { return MachineID(newUUID()) }

// NewSessionID returns a new, time-ordered session ID.
func NewSessionID() SessionID { return SessionID(newUUID()) }

// NewToken returns a new token that nobody can guess.
func NewToken() Token { return Token("ironherd-" + uuid.NewString()) }

// ParseMachineID checks that s is a UUID and returns it in canonical form. The error is of kind
// Invalid.
func ParseMachineID(s string) (MachineID, error) {
	id, err := uuid.Parse(strings.TrimSpace(s))
	if err != nil {
		return "", Errorf(KindInvalid, "%q is not a machine ID: a UUID is expected", s)
	}
	return MachineID(id.String()), nil
}

var providerName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,39}$`)

// ParseProviderName checks that s can name a provider instance: 1 to 40 of [a-z0-9-], starting with
// a letter. The error is of kind Invalid.
func ParseProviderName(s string) (ProviderName, error) {
	if !providerName.MatchString(s) {
		return "", Errorf(KindInvalid, "%q cannot name a provider: use 1 to 40 lower-case letters, digits and hyphens, a letter first", s)
	}
	return ProviderName(s), nil
}

func newUUID() string {
	id, err := uuid.NewV7()
	// only when the system's source of randomness fails, which crypto/rand makes fatal anyway
	if err != nil {
		panic(fmt.Sprintf("read random bytes: %v", err))
	}
	return id.String()
}
