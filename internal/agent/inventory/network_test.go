package inventory

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

func TestNetworkShapes(t *testing.T) {
	t.Parallel()
	const nets = "sys/class/net/"
	hardware := func(name, mac string, more map[string]string) map[string]string {
		files := map[string]string{
			nets + name + "/device/uevent": "DRIVER=ice\nPCI_SLOT_NAME=0000:3b:00.0\n", nets + name + "/address": mac + "\n",
			nets + name + "/carrier": "1\n", nets + name + "/mtu": "1500\n",
		}
		for path, content := range more {
			files[nets+name+"/"+path] = content
		}
		return files
	}
	virtual := func(name, uevent string, lower ...string) map[string]string {
		files := map[string]string{
			nets + name + "/uevent": uevent + "INTERFACE=" + name + "\n", nets + name + "/address": "02:00:00:00:00:01\n",
			nets + name + "/carrier": "1\n", nets + name + "/mtu": "1500\n", nets + name + "/speed": "20000\n",
		}
		for _, l := range lower {
			files[nets+name+"/lower_"+l] = "->../" + l
		}
		return files
	}
	nic := func(name, mac string, speed int64) *agentv1.NetworkInterface {
		return &agentv1.NetworkInterface{Name: name, Mac: mac, Driver: "ice", Link: true, Mtu: 1500, BusId: "0000:3b:00.0", SpeedMbps: speed}
	}
	on := func(kind, name string, lower ...string) *agentv1.NetworkInterface {
		return &agentv1.NetworkInterface{Name: name, Mac: "02:00:00:00:00:01", Link: true, Mtu: 1500, SpeedMbps: 20000, Kind: kind, Lower: lower}
	}
	slave := nic("eth1", "02:00:00:00:00:0b", 0)
	slave.PermanentMac = slave.GetMac()
	down := nic("eth0", "02:00:00:00:00:0a", 0)
	down.Link = false
	for name, test := range map[string]struct {
		trees []map[string]string
		want  []*agentv1.NetworkInterface
	}{
		"a speed":                        {[]map[string]string{hardware("eth0", "02:00:00:00:00:0a", map[string]string{"speed": "400000\n"})}, []*agentv1.NetworkInterface{nic("eth0", "02:00:00:00:00:0a", 400000)}},
		"unknown":                        {[]map[string]string{hardware("eth0", "02:00:00:00:00:0a", map[string]string{"speed": "-1\n"})}, []*agentv1.NetworkInterface{nic("eth0", "02:00:00:00:00:0a", 0)}},
		"unknown without sign":           {[]map[string]string{hardware("eth0", "02:00:00:00:00:0a", map[string]string{"speed": "4294967295\n"})}, []*agentv1.NetworkInterface{nic("eth0", "02:00:00:00:00:0a", 0)}},
		"unknown in 16 bits":             {[]map[string]string{hardware("eth0", "02:00:00:00:00:0a", map[string]string{"speed": "65535\n"})}, []*agentv1.NetworkInterface{nic("eth0", "02:00:00:00:00:0a", 0)}},
		"a speed of a link that is down": {[]map[string]string{hardware("eth0", "02:00:00:00:00:0a", map[string]string{"carrier": "0\n", "speed": "1000\n"})}, []*agentv1.NetworkInterface{down}},
		"a bridge on a VLAN on a bond": {
			[]map[string]string{
				hardware("eth0", "02:00:00:00:00:01", nil), hardware("eth1", "02:00:00:00:00:01", map[string]string{"bonding_slave/perm_hwaddr": "02:00:00:00:00:0b\n"}),
				virtual("bond0", "DEVTYPE=bond\n", "eth0", "eth1"), virtual("bond0.100", "DEVTYPE=vlan\n", "bond0"), virtual("br0", "DEVTYPE=bridge\n", "bond0.100", "veth3"),
				virtual("veth3", ""), virtual("lo", ""),
			},
			[]*agentv1.NetworkInterface{
				on("bond", "bond0", "eth0", "eth1"), on("vlan", "bond0.100", "bond0"), on("bridge", "br0", "bond0.100", "veth3"), nic("eth0", "02:00:00:00:00:01", 0), slave,
			},
		},
		"a bridge of containers": {[]map[string]string{virtual("docker0", "DEVTYPE=bridge\n", "veth1"), virtual("veth1", "")}, nil},
		"a circle":               {[]map[string]string{virtual("br0", "DEVTYPE=bridge\n", "br1"), virtual("br1", "DEVTYPE=bridge\n", "br0")}, nil},
		"before kinds had names": {
			[]map[string]string{hardware("eth0", "02:00:00:00:00:0a", nil), virtual("bond0", "", "eth0"), {nets + "bond0/bonding/slaves": "eth0\n"}},
			[]*agentv1.NetworkInterface{on("bond", "bond0", "eth0"), nic("eth0", "02:00:00:00:00:0a", 0)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := map[string]string{}
			for _, some := range test.trees {
				for path, content := range some {
					files[path] = content
				}
			}
			got := Collect(tree(t, files)).GetNetworkInterfaces()
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDriversAnswers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"4.20 0x8001778b 22.0.9\x00rest": "4.20 0x8001778b 22.0.9", "N/A\x00": "", "": ""} {
		if got := firmwareVersion([]byte(text)); got != want {
			t.Errorf("firmware %q: %q", text, got)
		}
	}
	for address, want := range map[string]string{"\x02\x00\x00\x00\x00\x0a": "02:00:00:00:00:0a", "\x00\x00\x00\x00\x00\x00": "", "": ""} {
		if got := hardwareAddress([]byte(address)); got != want {
			t.Errorf("address %x: %q", address, got)
		}
	}
}
