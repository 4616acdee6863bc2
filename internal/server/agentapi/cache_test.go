package agentapi

import (
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestProgressOfAnAgentThatHasLeftIsNotTold: it may speak to another control plane, or be dead.
func TestProgressOfAnAgentThatHasLeftIsNotTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const interval = 30 * time.Second
		s := New(nil, DefaultConfig(), Options{})
		s.pace.set(interval, 1, 1)
		machine := fleet.NewMachineID()
		s.agents.heard(s.agents.remember(bmdb.AgentIdentity{Machine: machine}), false, &agentv1.InstallProgress{BytesDone: 5})
		time.Sleep(2 * interval)
		if _, installing := s.agents.dropSilent(forgetAfter, 2*interval); installing != 1 || s.Progress(machine).GetBytesDone() != 5 {
			t.Errorf("after two intervals %d install, and it is at %v", installing, s.Progress(machine))
		}
		time.Sleep(time.Second)
		left, installing := s.agents.dropSilent(forgetAfter, 2*interval)
		if left != 1 || installing != 0 || s.Progress(machine) != nil {
			t.Errorf("%d are left, %d install, and it is still at %v", left, installing, s.Progress(machine))
		}
	})
}
