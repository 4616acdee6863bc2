package fleet

// Role is a part of the control plane that a process can have.
type Role string

// The roles.
const (
	RoleProvisioner Role = "provisioner"
	RoleInitializer Role = "initializer"
	RoleUpdater     Role = "updater"
	RoleRecoverer   Role = "recoverer"
	RoleOperations  Role = "operations"
	RoleProber      Role = "prober"
	RoleJanitor     Role = "janitor"
	RoleAgentAPI    Role = "agent-api"
	RoleOperatorAPI Role = "operator-api"
)

// Roles lists all roles.
func Roles() []Role {
	return []Role{
		RoleProvisioner, RoleInitializer, RoleUpdater, RoleRecoverer, RoleOperations, RoleProber, RoleJanitor, RoleAgentAPI,
		RoleOperatorAPI,
	}
}

// Process returns the process that the role does; false for one that does none.
func (r Role) Process() (Process, bool) {
	for _, p := range Processes() {
		if p.Role() == r {
			return p, true
		}
	}
	return "", false
}

// AtProviders reports whether the role is that of a loop, which works at the providers of its
// process's configuration.
func (r Role) AtProviders() bool {
	_, works := r.Process()
	return works && r != RoleAgentAPI
}

// Component names the sessions of the role: a loop's are named after its process.
func (r Role) Component() string {
	if p, _ := r.Process(); r.AtProviders() {
		return string(p)
	}
	return string(r)
}

// RoleOf returns the role whose sessions have that name; "" where none has.
func RoleOf(component string) Role {
	for _, r := range Roles() {
		if r.Component() == component {
			return r
		}
	}
	return ""
}
