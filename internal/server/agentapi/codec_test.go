package agentapi

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// TestRequestsThatWouldGrowAreNotDecoded has entries of two bytes, each of which is a struct of
// hundreds once it is decoded: on one level, and one in another.
func TestRequestsThatWouldGrowAreNotDecoded(t *testing.T) {
	t.Parallel()
	hardware := (&agentv1.HeartbeatRequest{}).ProtoReflect().Descriptor().Fields().ByName("hardware_report").Number()
	interfaces := (&agentv1.HardwareReport{}).ProtoReflect().Descriptor().Fields().ByName("network_interfaces").Number()
	reports := func(report []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, hardware, protowire.BytesType), report)
	}
	empty := protowire.AppendBytes(protowire.AppendTag(nil, interfaces, protowire.BytesType), nil)
	for name, wire := range map[string][]byte{
		"an agent's":                      reports(bytes.Repeat(empty, 500_000)),
		"a stranger's":                    reports(bytes.Repeat(empty, 14_000)),
		"a stranger's in several reports": bytes.Repeat(reports(bytes.Repeat(empty, 5)), 2_000),
		"cut short":                       append(bytes.Repeat(reports(nil), 5_000), 0x80),
	} {
		var req agentv1.HeartbeatRequest
		err := newBoundedCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, &req)
		if err == nil || !strings.Contains(err.Error(), "messages inside") {
			t.Errorf("%s request: %v", name, err)
		}
		if req.GetHardwareReport() != nil {
			t.Errorf("%s request was decoded", name)
		}
	}
}

// TestLargeMachinesAreDecoded has a machine with more of everything than any has.
func TestLargeMachinesAreDecoded(t *testing.T) {
	t.Parallel()
	report := &agentv1.HardwareReport{Memory: &agentv1.Memory{}}
	for range 1000 {
		report.BlockDevices = append(report.BlockDevices, &agentv1.BlockDevice{Name: "sdaa", SizeBytes: 4e12, LogicalSectorBytes: 512, Health: &agentv1.Health{Passed: true}})
		report.NetworkInterfaces = append(report.NetworkInterfaces, &agentv1.NetworkInterface{Name: "veth1", Mac: "00:00:5e:00:53:01", Mtu: 1500})
		report.PciDevices = append(report.PciDevices, &agentv1.PciDevice{Address: "0000:00:1f.6", Kind: "ethernet", Id: "8086:15bb"})
		report.Memory.Modules = append(report.Memory.Modules, &agentv1.MemoryModule{Locator: "DIMM_A1", Vendor: "ACME", SizeBytes: 64 << 30})
	}
	for range 128 {
		report.NumaNodes = append(report.NumaNodes, &agentv1.NumaNode{Node: 1, Cpus: "0-7"})
		report.Cpus = append(report.Cpus, &agentv1.Cpu{CoreKinds: []*agentv1.CoreKind{{Cores: 8, Threads: 16}}})
	}
	want := &agentv1.HeartbeatRequest{BootId: "b", HardwareReport: report}
	wire, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got agentv1.HeartbeatRequest
	half := len(wire) / 2
	if err := newBoundedCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire[:half]), mem.SliceBuffer(wire[half:])}, &got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(want, &got) {
		t.Error("what was decoded is not what was encoded")
	}
}
