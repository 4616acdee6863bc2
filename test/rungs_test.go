package test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/test/process"
)

// TestRungs: machines of a real world break in different ways, and each step of the ladder brings
// back what it can bring back, and costs no machine more than it needs.
func TestRungs(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 8*time.Minute)
	herd := &process.Herd{
		Ironherd: ironherd, Dir: shortDir(t), Machines: 6,
		// Four machines break a while after their first boot, each in its own way. A busy host brings all
		// of them up before, has each agent heard in time, and ends no step before its time.
		WorldArgs: []string{"--real-agents", "6", "--faults", "host-hangs=#1:60s,host-frozen=#1:60s,host-disk-lost=#1:60s,host-dies=#1:60s"},
		PlaneArgs: []string{
			"--set", "policy.heartbeat_interval=1s", "--set", "policy.silent_after=8s", "--set", "policy.never_spoke_after=20s",
			"--set", "policy.recovery_step_timeout=25s", "--set", "policy.recovery_reboots=1", "--set", "policy.recovery_reinstalls=1",
			"--set", "policy.suspect_share=0", // four of six fall silent at once, and not by our fault
		},
	}
	gate := startGated(ctx, t, herd)
	if err := herd.AwaitState(ctx, "available", herd.Machines, func(line string) { t.Log(line) }); err != nil {
		t.Fatal(err)
	}
	if err := herd.AwaitState(ctx, "quarantined", 1, func(line string) { t.Log(line) }); err != nil {
		t.Fatal(err)
	}
	if err := herd.AwaitState(ctx, "available", herd.Machines-1, func(line string) { t.Log(line) }); err != nil {
		t.Fatal(err)
	}
	const all = "reboot, off, on, reinstall"
	// What was done, and how it ended. After each restart it is the start of the agent that is heard.
	const restarted = "recovered: heard after the step agent-start, with another boot ID"
	want := map[string]string{
		"reboot":          restarted,
		"reboot, off, on": restarted,
		all:               restarted,
		all + ", kept":    "quarantined",
		"":                "",
	}
	got, sound := map[string]string{}, ""
	for _, m := range machines(ctx, t, herd) {
		did := leversOf(gate, m.GetProviderId())
		if m.GetState() == "quarantined" {
			did += ", kept"
			if !strings.Contains(m.GetReason(), "without a sign of life") {
				t.Errorf("%s is quarantined: %s", m.GetHostname(), m.GetReason())
			}
		}
		if did == "" {
			sound = m.GetId()
		}
		got[did] = howItEnded(ctx, t, herd, m.GetId())
	}
	for did, end := range want {
		if found, ok := got[did]; !ok || !strings.HasPrefix(found, end) {
			t.Errorf("a machine to which was done %q ended as %q, want %q", did, found, end)
		}
	}
	if len(got) != len(want) {
		t.Errorf("to some machines was done: %q", slices.Sorted(maps.Keys(got)))
	}

	killAgent(ctx, t, herd, sound)
	if end := awaitEnd(ctx, t, herd, sound); !strings.HasPrefix(end, "recovered: heard after the step agent-start, with the same boot ID") {
		t.Errorf("a machine whose agent was killed ended as %q", end)
	}
	for _, m := range machines(ctx, t, herd) {
		if m.GetId() == sound && (leversOf(gate, m.GetProviderId()) != "" || m.GetState() != "available") {
			t.Errorf("a machine whose agent was killed is %s, after %q", m.GetState(), leversOf(gate, m.GetProviderId()))
		}
	}
}

func machines(ctx context.Context, t *testing.T, herd *process.Herd) []*fleetv1.Machine {
	t.Helper()
	list, err := herd.Client().ListMachines(ctx, &fleetv1.ListMachinesRequest{PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return list.GetMachines()
}

// leversOf says what the provider did to a device.
func leversOf(gate *process.Gate, device string) string {
	var did []string
	for _, lever := range [][2]string{{"reboot", "reboot"}, {"power_off", "off"}, {"power_on", "on"}, {"reinstall", "reinstall"}} {
		for range gate.Passed(lever[0] + " " + device) {
			did = append(did, lever[1])
		}
	}
	return strings.Join(did, ", ")
}

// howItEnded is the newest thing that history has of the end of a machine's recovery; "" when it
// has nothing.
func howItEnded(ctx context.Context, t *testing.T, herd *process.Herd, machine string) string {
	t.Helper()
	history, err := herd.Client().ListHistory(ctx, &fleetv1.ListHistoryRequest{Machine: machine, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	end := ""
	for _, e := range history.GetEntries() {
		if e.GetEvent() == "recovered" || e.GetEvent() == "quarantined" {
			end = fmt.Sprintf("%s: %s", e.GetEvent(), afterHeard(e.GetDetail()))
		}
	}
	return end
}

// afterHeard leaves out how long it took.
func afterHeard(detail string) string {
	words := strings.Fields(detail)
	if len(words) > 2 && words[0] == "heard" {
		return strings.Join(append(words[:1:1], words[2:]...), " ")
	}
	return detail
}

func awaitEnd(ctx context.Context, t *testing.T, herd *process.Herd, machine string) string {
	t.Helper()
	for {
		if end := howItEnded(ctx, t, herd, machine); end != "" || ctx.Err() != nil {
			return end
		}
		letRun(ctx, 200*time.Millisecond)
	}
}

// killAgent kills the processes of a machine's agent.
func killAgent(ctx context.Context, t *testing.T, herd *process.Herd, machine string) {
	t.Helper()
	device := ""
	for _, m := range machines(ctx, t, herd) {
		if m.GetId() == machine {
			device = m.GetProviderId()
		}
	}
	roots, err := filepath.Glob(filepath.Join(herd.Dir, "world", "hosts", "*-"+device[:8]))
	if err != nil || len(roots) != 1 {
		t.Fatalf("the machine of device %s is in %q (%v)", device, roots, err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		// of a process that has ended: nothing
		environment, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if bytes.Contains(environment, []byte("IRONHERD_AGENT_ROOT="+roots[0]+"\x00")) && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	if killed == 0 {
		t.Fatalf("no process runs on the machine in %s", roots[0])
	}
}
