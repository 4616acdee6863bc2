package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// An agent in memory that is told to leave ends, and says why. The order counts for the takeover
// that it names, and only while the disk certainly holds what it held at the jump.
func TestOrderToLeave(t *testing.T) {
	const kexec = agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC
	order := func(generation int64) *agentv1.LeaveMachine {
		return &agentv1.LeaveMachine{TakeoverGeneration: generation, Reason: "release, asked for by ada:\n\x1b[31msold"}
	}
	for name, c := range map[string]struct {
		mode   agentv1.TakeoverMode
		order  *agentv1.LeaveMachine
		state  func(*agentv1.AgentState)
		leaves bool
	}{
		"in memory":                   {mode: kexec, order: order(4), leaves: true},
		"no order":                    {mode: kexec},
		"in place":                    {order: order(4)},
		"of an older takeover":        {mode: kexec, order: order(3)},
		"of a newer takeover":         {mode: kexec, order: order(5)},
		"a disk was written":          {mode: kexec, order: order(4), state: func(s *agentv1.AgentState) { s.FirstInstallGeneration, s.FirstInstallBootId = 2, "boot-1" }},
		"the system there was ours":   {mode: kexec, order: order(4), state: func(s *agentv1.AgentState) { s.FirstInstallGeneration, s.FirstInstallBootId = 1, "boot-0" }, leaves: true},
		"a report is not heard first": {mode: kexec, order: order(4), state: func(s *agentv1.AgentState) { s.InstallRunning = true }, leaves: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				f.host.prepare(f.t, initMessage(4, f.authority))
				if c.state != nil {
					f.host.change(f.t, c.state)
				}
				f.options.Mode = c.mode
				f.answer = func(n int, request *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
					if n == 0 && request.GetInstallReport() != nil {
						return refuse()
					}
					return &agentv1.HeartbeatResponse{NextIntervalMs: 10_000, LeaveMachine: c.order}, nil
				}
				f.start(f.t)
				after(time.Minute)
				if !c.leaves {
					if n := len(f.seen()); n < 5 {
						f.t.Errorf("%d heartbeats", n)
					}
					f.end(f.t)
					return
				}
				err := <-f.done
				back, ok := errors.AsType[*givenBackError](err)
				if !ok || !strings.Contains(back.Error(), "gives the machine back: release, asked for by ada:[31msold") {
					f.t.Errorf("it ended with %v", err)
				}
				if f.host.state(f.t).GetUnacknowledgedReport() != nil {
					f.t.Error("a report is left")
				}
				f.server.Stop()
			})
		})
	}
}

// An install that runs is not left alone, whatever the order says.
func TestOrderToLeaveWaitsForAnInstall(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		data := image()
		f.options.HTTPClient, f.options.Mode = imageClient(data), agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC
		f.answer = func(n int, _ *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			response := &agentv1.HeartbeatResponse{NextIntervalMs: 1000, LeaveMachine: &agentv1.LeaveMachine{TakeoverGeneration: 1, Reason: "sold"}}
			if n == 0 {
				response.InstallRequest = installRequest(1, 1, data)
			}
			return response, nil
		}
		ended := ""
		f.options.Reboot = func(context.Context) error { ended = "rebooted"; f.stop(); return nil }
		f.start(t)
		if err := <-f.done; err != nil || ended != "rebooted" {
			t.Errorf("%v, %q", err, ended)
		}
		f.server.Stop()
	})
}
