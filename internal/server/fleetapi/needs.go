package fleetapi

import (
	"maps"

	"connectrpc.com/grpcreflect"

	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/token"
)

// needs is the table of what each role may call: the least role for each path of the operators'
// server.
var needs = map[string]token.Role{
	fleetv1connect.FleetServiceGetSummaryProcedure:        token.Viewer,
	fleetv1connect.FleetServiceListMachinesProcedure:      token.Viewer,
	fleetv1connect.FleetServiceGetMachineProcedure:        token.Viewer,
	fleetv1connect.FleetServiceExplainMachineProcedure:    token.Viewer,
	fleetv1connect.FleetServiceListHistoryProcedure:       token.Viewer,
	fleetv1connect.FleetServiceListProvidersProcedure:     token.Viewer,
	fleetv1connect.FleetServiceListSessionsProcedure:      token.Viewer,
	fleetv1connect.FleetServiceListDiscrepanciesProcedure: token.Viewer,
	fleetv1connect.FleetServiceGetVersionProcedure:        token.Viewer,
	fleetv1connect.FleetServiceGetHostKeysProcedure:       token.Viewer,
	fleetv1connect.FleetServiceListImagesProcedure:        token.Viewer,

	fleetv1connect.FleetServiceInstallMachineProcedure: token.Operator,
	fleetv1connect.FleetServiceRetryMachineProcedure:   token.Operator,
	fleetv1connect.FleetServiceGetPlanProcedure:        token.Viewer,
	fleetv1connect.FleetServiceCreatePlanProcedure:     token.Operator,
	fleetv1connect.FleetServiceConfirmPlanProcedure:    token.Operator,
	fleetv1connect.FleetServiceAdoptMachineProcedure:   token.Operator,
	fleetv1connect.FleetServicePauseProviderProcedure:  token.Operator,
	fleetv1connect.FleetServiceResumeProviderProcedure: token.Operator,
	fleetv1connect.FleetServiceRetryProviderProcedure:  token.Operator,
	fleetv1connect.FleetServiceForgetProviderProcedure: token.Operator,
	fleetv1connect.FleetServicePauseRecoveryProcedure:  token.Operator,
	fleetv1connect.FleetServiceResumeRecoveryProcedure: token.Operator,
	// Whose key is accepted has the machine.
	fleetv1connect.FleetServiceAcceptHostKeyProcedure: token.Admin,

	reflection(grpcreflect.ReflectV1ServiceName):      token.Viewer,
	reflection(grpcreflect.ReflectV1AlphaServiceName): token.Viewer,

	"/metrics": token.Metrics,
	// Whoever asks for health must not need anything that may be ill.
	"/healthz": token.None,
	"/readyz":  token.None,
	// The page, and what there is not.
	"/": token.Viewer,
}

// neededBy returns the role that a procedure needs; one without a row needs the highest.
func neededBy(procedure string) token.Role {
	if needed, ok := needs[procedure]; ok {
		return needed
	}
	return token.Admin
}

func reflection(service string) string { return "/" + service + "/ServerReflectionInfo" }

// Needs returns the least role for each path of the operators' server, and under "/" the one for
// all others.
func Needs() map[string]token.Role { return maps.Clone(needs) }
