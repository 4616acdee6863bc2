package fleetapi_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

// TestAnImageForAnotherArchitectureIsRefused where the hardware report says what the machine is: by
// an install, and by a plan, which leaves that machine out. What is not known is no obstacle.
func TestAnImageForAnotherArchitectureIsRefused(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	ids := o.machines(3)
	for _, w := range o.claim(fleet.ProcessAgentStart) {
		agent := o.takeover(w)
		for i, architecture := range []string{"amd64", "arm64"} {
			if w.Subject.Machine == ids[i] {
				report, err := proto.Marshal(&agentv1.HardwareReport{System: &agentv1.System{Architecture: architecture}})
				o.must(err)
				o.must(o.db.RecordHardware(t.Context(), agent, report, nil))
			}
		}
		if w.Subject.Machine == ids[2] {
			o.must(o.db.RecordHardware(t.Context(), agent, []byte("no report"), nil))
		}
	}
	client := o.client(token.Operator)
	request := wanted("host-0")
	request.Image.Architecture = "arm64"
	says := "the image is for arm64, and machine " + string(ids[0]) + " is amd64 by its hardware report: choose an image for amd64"
	if _, err := client.InstallMachine(t.Context(), request); code(err) != connect.CodeFailedPrecondition || message(err) != says {
		t.Errorf("an install: %v", err)
	}
	if r := o.record(ids[0]); r.InstallRequest != nil {
		t.Errorf("asked for: %+v", r.InstallRequest)
	}
	plan, err := client.CreatePlan(t.Context(), &fleetv1.CreatePlanRequest{
		Verb: string(fleet.VerbReinstall), Machines: []string{"host-0", "host-1", "host-2"}, Reason: "r", Install: request, Confirm: true,
	})
	o.must(err)
	for i, want := range []string{"refused", "done", "done"} {
		outcome := plan.GetPlan().GetMachines()[i]
		if r := o.record(ids[i]); outcome.GetOutcome() != want || (r.InstallRequest == nil) != (i == 0) {
			t.Errorf("%s: %v, %+v", name(i), outcome, r.InstallRequest)
		}
	}
	if got := plan.GetPlan().GetMachines()[0]; got.GetRefused() != says {
		t.Errorf("the plan says %v", got)
	}
	if r := o.record(ids[1]); r.InstallRequest.Image.Architecture != fleet.ArchitectureARM64 {
		t.Errorf("asked for: %+v", r.InstallRequest)
	}
	machine, err := client.GetMachine(t.Context(), &fleetv1.GetMachineRequest{Machine: "host-1"})
	o.must(err)
	if got := machine.GetImage().GetArchitecture(); got != "arm64" || !strings.Contains(machine.GetImage().GetLocation(), "images.example") {
		t.Errorf("the image is told as %v", machine.GetImage())
	}
}
