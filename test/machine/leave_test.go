package machine

import (
	"fmt"
	"strings"
	"testing"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/vm"
)

// A host of a list whose agent is in memory is released: the agent restarts it into the system on
// its disk, and nothing of the takeover is left there.
func TestReleasedFromMemory(t *testing.T) {
	onDemand(t)
	for _, firmware := range []vm.Firmware{vm.UEFI, vm.BIOS} {
		t.Run(string(firmware), func(t *testing.T) {
			t.Parallel()
			ctx := bounded(t, limit)
			port := freePort(t)
			m := boot(t, quick(t, firmware, "", port))
			p := manage(t, initializer.TakeoverKexec, port, m, nil)
			id := ""
			await(t, ctx, "the agent in memory", func() error {
				machine, err := p.machine(ctx)
				if err != nil {
					return err
				}
				if id = machine.GetMachine().GetId(); machine.GetMachine().GetState() != string(fleet.StateAvailable) {
					return fmt.Errorf("the machine is %s: %s", machine.GetMachine().GetState(), machine.GetMachine().GetReason())
				}
				return nil
			})
			_, err := p.client.CreatePlan(ctx, &fleetv1.CreatePlanRequest{Verb: string(fleet.VerbRelease), Machines: []string{id}, Reason: "sold", Confirm: true})
			check(t, err)
			await(t, ctx, "the end of the release", func() error {
				list, err := p.client.ListMachines(ctx, &fleetv1.ListMachinesRequest{})
				if err == nil && len(list.GetMachines()) > 0 {
					err = fmt.Errorf("the machine is %s: %s", list.GetMachines()[0].GetState(), list.GetMachines()[0].GetReason())
				}
				return err
			})
			if !strings.Contains(m.Console(), "the control plane gives the machine back: release, asked for by") {
				t.Error("the console does not tell why the machine was restarted")
			}
			left := shell(t, ctx, login(t, ctx, m), "ls -d /root/agent /var/lib/ironherd-agent /run/ironherd-agent /var/log/ironherd-agent.log 2>/dev/null || true")
			if strings.TrimSpace(left) != "" {
				t.Errorf("left on the host: %s", left)
			}
		})
	}
}
