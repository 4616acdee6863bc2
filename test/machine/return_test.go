package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/vm"
)

const agentTarget = "/root/agent/ironherd-agent"

// upload brings the agent to the machine.
func upload(t *testing.T, ctx context.Context, host *remote.Host) string {
	t.Helper()
	content, err := remote.ReadContent(built.agent)
	check(t, err)
	uploaded, err := host.Upload(ctx, content, agentTarget, 0o700)
	check(t, err)
	return uploaded.Path
}

// takeOver runs a takeover as a control plane does.
func takeOver(t *testing.T, ctx context.Context, host *remote.Host, agent string, init *agentv1.TakeoverInit) *agentv1.TakeoverResponse {
	t.Helper()
	input, err := proto.Marshal(init)
	check(t, err)
	out, err := host.Run(ctx, remote.Command{Args: []string{agent, "takeover"}, Stdin: bytes.NewReader(input), Timeout: 10 * time.Minute})
	response := new(agentv1.TakeoverResponse)
	if unmarshalErr := proto.Unmarshal(out, response); unmarshalErr != nil || len(out) == 0 {
		t.Fatalf("the agent answered %q: %v, %v", out, err, unmarshalErr)
	}
	return response
}

// The dead man: the agent in memory does not reach its control plane. The machine is back in its
// old system within the limit, its disk was not touched, and the next takeover tells why.
func TestReturnsToTheOldSystem(t *testing.T) {
	onDemand(t)
	const contactLimit = 20 * time.Second
	for _, firmware := range []vm.Firmware{vm.UEFI, vm.BIOS} {
		t.Run(string(firmware), func(t *testing.T) {
			t.Parallel()
			ctx := bounded(t, limit)
			c := quick(t, firmware, "")
			c.StopAtReset = true
			m := boot(t, c)
			host := login(t, ctx, m)
			plane, err := server.OpenCertificates(server.ForAgents, t.TempDir(), []string{vm.GatewayAddress}, slog.New(slog.DiscardHandler))
			check(t, err)
			init := &agentv1.TakeoverInit{
				MachineId: "6f9619ff-8b86-4011-b42d-00c04fc964ff", TakeoverGeneration: 1, Endpoint: vm.GatewayAddress + ":7443",
				HeartbeatIntervalMs: 1000, Mode: agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC, ContactLimitMs: contactLimit.Milliseconds(),
				CaCertificate: plane.Authority(), // the machine has no root certificates
			}
			response := takeOver(t, ctx, host, upload(t, ctx, host), init)
			if success := response.GetSuccess(); success.GetMode() != agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC || len(success.GetPublicKey()) != 32 {
				t.Fatalf("response: %v", response)
			}
			t.Logf("warnings: %q", response.GetSuccess().GetWarnings())
			check(t, host.Close())

			_, err = m.AwaitConsole(ctx, "the agent is in memory", 0)
			check(t, err)
			jumped := time.Now()
			check(t, m.Pause(ctx))
			before, err := digest(c.Disks[0].Path)
			check(t, err)
			check(t, m.Resume(ctx))
			check(t, m.Wait(ctx))
			took := time.Since(jumped)
			t.Logf("the machine was restarted %.1f s after the jump, with a limit of %s", took.Seconds(), contactLimit)
			if took > contactLimit+time.Minute {
				t.Errorf("the machine was restarted only %s after the jump", took)
			}
			after, err := digest(c.Disks[0].Path)
			check(t, err)
			if before != after {
				t.Error("the disk was written to")
			}
			if console := m.Console(); !strings.Contains(console, "had no contact with the control plane within 20s") {
				t.Error("the console does not tell why")
			}

			c.StopAtReset = false
			m = boot(t, c)
			host = login(t, ctx, m)
			agent := upload(t, ctx, host)
			compareInventory(t, ctx, host, agent)
			init.TakeoverGeneration, init.Mode = 2, agentv1.TakeoverMode_TAKEOVER_MODE_IN_PLACE
			returned := takeOver(t, ctx, host, agent, init).GetReturned()
			t.Logf("the next takeover tells: %v", returned)
			if returned.GetTakeoverGeneration() != 1 || !strings.Contains(returned.GetCause(), "no contact with the control plane within 20s") {
				t.Errorf("the next takeover tells: %v", returned)
			}
			// With EFI the agent's own words have come through, and they name the address.
			if firmware == vm.UEFI && !strings.Contains(returned.GetCause(), vm.GatewayAddress) {
				t.Errorf("the cause is not the agent's: %v", returned)
			}
		})
	}
}

// compareInventory compares the agent's report with what Debian's tools say in the same guest.
func compareInventory(t *testing.T, ctx context.Context, host *remote.Host, agent string) {
	t.Helper()
	report := new(agentv1.HardwareReport)
	check(t, protojson.Unmarshal([]byte(shell(t, ctx, host, agent+" inventory -o json")), report))
	s := report.GetSystem()
	for keyword, got := range map[string]string{
		"system-manufacturer": s.GetVendor(), "system-product-name": s.GetProduct(), "system-serial-number": s.GetSerial(),
		"system-uuid": s.GetUuid(), "bios-vendor": s.GetFirmwareVendor(), "bios-version": s.GetFirmwareVersion(),
	} {
		if want := strings.TrimSpace(shell(t, ctx, host, "dmidecode -s "+keyword)); !strings.EqualFold(got, want) {
			t.Errorf("dmidecode says of %s %q, the agent %q", keyword, want, got)
		}
	}
	var lsblk struct {
		Blockdevices []struct {
			Name, Serial string
			Size         int64
		}
	}
	check(t, json.Unmarshal([]byte(shell(t, ctx, host, "lsblk -J -b -d -e 7 -o NAME,SERIAL,SIZE")), &lsblk))
	if len(lsblk.Blockdevices) != len(report.GetBlockDevices()) {
		t.Errorf("lsblk says %v, the agent %v", lsblk, report.GetBlockDevices())
	}
	for i, d := range lsblk.Blockdevices {
		if i < len(report.GetBlockDevices()) {
			got := report.GetBlockDevices()[i]
			// lsblk asks udev for the serial number, which a quick machine does not have.
			d.Serial = strings.TrimSpace(shell(t, ctx, host, "cat /sys/class/block/"+d.Name+"/serial"))
			if got.GetName() != d.Name || got.GetSerial() != d.Serial || got.GetSizeBytes() != d.Size {
				t.Errorf("lsblk says %v, the agent %v", d, got)
			}
		}
	}
	var modules []string
	for _, m := range report.GetMemory().GetModules() {
		modules = append(modules, fmt.Sprintf("%d MB %s", m.GetSizeBytes()/1_048_576, m.GetLocator()))
	}
	const memory = `dmidecode -t 17 | awk -F': ' '/\tSize:/ {size = $2; if (sub(/ GB$/, "", size)) size = size * 1024 " MB"} /\tLocator:/ {print size, $2}'`
	if want := strings.TrimSpace(shell(t, ctx, host, memory)); strings.Join(modules, "\n") != want {
		t.Errorf("dmidecode says of memory %q, the agent %q", want, modules)
	}
	var lscpu struct {
		Lscpu []struct{ Field, Data string }
	}
	check(t, json.Unmarshal([]byte(shell(t, ctx, host, "lscpu -J")), &lscpu))
	threads, cores, sockets := report.GetOfflineThreads(), int32(0), map[int32]bool{}
	for _, cpu := range report.GetCpus() {
		threads, cores, sockets[cpu.GetSocket()] = threads+cpu.GetThreads(), cores+cpu.GetCores(), true
	}
	for _, f := range lscpu.Lscpu {
		var got string
		switch strings.TrimSuffix(f.Field, ":") {
		case "CPU(s)":
			got = fmt.Sprint(threads)
		case "Socket(s)":
			got = fmt.Sprint(len(sockets))
		case "Core(s) per socket":
			got = fmt.Sprint(cores / int32(len(sockets)))
		case "Vendor ID":
			got = report.GetCpus()[0].GetVendor()
		case "Model name":
			got = report.GetCpus()[0].GetModel()
		default:
			continue
		}
		if got != f.Data {
			t.Errorf("lscpu says of %s %q, the agent %q", f.Field, f.Data, got)
		}
	}
}
