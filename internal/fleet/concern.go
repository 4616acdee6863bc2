package fleet

// ConcernKind is what a concern of the fleet is about.
type ConcernKind string

// The kinds of concern.
const (
	ConcernDatabase    ConcernKind = "database"
	ConcernState       ConcernKind = "state"
	ConcernLate        ConcernKind = "late"
	ConcernDiscrepancy ConcernKind = "discrepancy"
	ConcernProvider    ConcernKind = "provider"
	ConcernOverdue     ConcernKind = "overdue"
	ConcernHostKey     ConcernKind = "host-key"
	ConcernRefusal     ConcernKind = "refusal"
	ConcernUnasked     ConcernKind = "unasked"
	ConcernListener    ConcernKind = "listener"
	ConcernRestored    ConcernKind = "restored"
	ConcernFinding     ConcernKind = "finding"
	ConcernDuty        ConcernKind = "duty"
	ConcernRole        ConcernKind = "role"
	ConcernCertificate ConcernKind = "certificate"
	ConcernToken       ConcernKind = "token"
)

// ConcernKinds lists them.
func ConcernKinds() []ConcernKind {
	return []ConcernKind{
		ConcernDatabase, ConcernState, ConcernLate, ConcernDiscrepancy, ConcernProvider,
		ConcernOverdue, ConcernHostKey, ConcernRefusal, ConcernUnasked, ConcernListener,
		ConcernRestored, ConcernFinding, ConcernDuty, ConcernRole, ConcernCertificate,
		ConcernToken,
	}
}
