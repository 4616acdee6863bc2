package token

import (
	"slices"
	"strings"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Role is what a caller of the operator API may do. Each role may do what those before it may.
type Role string

// The roles, the least first.
const (
	// None may do nothing but ask for health.
	None Role = ""
	// Metrics may read the metrics.
	Metrics Role = "metrics"
	// Viewer may read everything.
	Viewer Role = "viewer"
	// Operator may change what becomes of machines.
	Operator Role = "operator"
	// Admin may do everything, as whoever can open the Unix socket.
	Admin Role = "admin"
)

// Roles lists the roles that a token can have, the least first.
func Roles() []Role { return []Role{Metrics, Viewer, Operator, Admin} }

// Covers reports whether the role may do what needs the other one. A role that is not known covers
// nothing, and nothing but Admin covers it.
func (r Role) Covers(needed Role) bool {
	all := Roles()
	have, want := slices.Index(all, r), slices.Index(all, needed)
	switch {
	case needed == None:
		return true
	case have < 0:
		return false
	case want < 0:
		return r == Admin
	}
	return have >= want
}

// ParseRole returns the role of that name. The error is of kind Invalid and lists the names.
func ParseRole(name string) (Role, error) {
	if slices.Contains(Roles(), Role(name)) {
		return Role(name), nil
	}
	var names []string
	for _, r := range Roles() {
		names = append(names, string(r))
	}
	return None, fleet.Errorf(fleet.KindInvalid, "there is no role %q: use one of %s", name, strings.Join(names, ", "))
}
