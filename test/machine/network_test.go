package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/vm"
)

// What DHCP would not give: an address of its own, a small MTU, a name that the kernel would not
// choose. The agent in memory has them, and connects.
func TestNetworkIsCarriedOver(t *testing.T) {
	onDemand(t)
	t.Parallel()
	ctx := bounded(t, limit)
	port := freePort(t)
	c := quick(t, vm.BIOS, "test.mtu=1400 test.address=10.0.2.77/24", port)
	c.Networks[0].Address = "10.0.2.77"
	m := boot(t, c)
	p := manage(t, initializer.TakeoverKexec, port, m, nil)
	report := awaitCarried(t, ctx, p, m)
	cards := report.GetNetworkInterfaces()
	if len(cards) != 1 || cards[0].GetName() != "wan0" || cards[0].GetMtu() != 1400 || !slices.Contains(cards[0].GetAddresses(), "10.0.2.77/24") {
		t.Errorf("network interfaces: %v", cards)
	}
	if !slices.ContainsFunc(history(t, ctx, p), func(e *fleetv1.HistoryEntry) bool { return e.GetEvent() == string(fleet.EventTakeoverWarning) }) {
		t.Error("history does not tell that no name server was known")
	}
}

// Networks that only another machine can offer: IPv6 alone, a VLAN, a VLAN on a bond whose members
// end in one bridge, and one on a bond that speaks LACP. The agent in memory connects through each.
func TestNetworksBehindAPeer(t *testing.T) {
	onDemand(t)
	t.Parallel()
	ctx := bounded(t, limit)
	peer := bootPeer(t, ctx, 6)
	for _, c := range []struct {
		name, words string
		cables      []int
		own, guest  string
		setup       string
		// then must be what the peer says to this when the agent has connected.
		ask, then string
	}{
		{
			name: "IPv6 alone", words: "test.address=fd00:9::2/64 test.gateway=fd00:9::1", cables: []int{0}, own: "fd00:9::1", guest: "fd00:9::2",
			setup: "ip link set wan1 up && ip address add fd00:9::1/64 dev wan1 nodad",
		},
		{
			name: "VLAN", words: "test.vlan=100 test.address=10.9.1.2/24 test.gateway=10.9.1.1", cables: []int{1}, own: "10.9.1.1", guest: "10.9.1.2",
			setup: "modprobe 8021q && ip link set wan2 up && ip link add link wan2 name lan type vlan id 100 && ip link set lan up && " +
				"ip address add 10.9.1.1/24 dev lan",
		},
		{
			name: "VLAN on a bond, MTU 1400", words: "test.cards=2 test.bond=active-backup test.vlan=200 test.mtu=1400 test.address=10.9.2.2/24 test.gateway=10.9.2.1",
			cables: []int{2, 3}, own: "10.9.2.1", guest: "10.9.2.2",
			setup: "modprobe bridge && ip link add br0 type bridge && ip link set wan3 master br0 up && ip link set wan4 master br0 up && " +
				"ip link set br0 up && ip link add link br0 name br0.200 type vlan id 200 && ip link set br0.200 up && ip address add 10.9.2.1/24 dev br0.200",
		},
		{
			name: "VLAN on a bond with LACP", words: "test.cards=2 test.bond=802.3ad test.vlan=300 test.address=10.9.3.2/24 test.gateway=10.9.3.1",
			cables: []int{4, 5}, own: "10.9.3.1", guest: "10.9.3.2",
			setup: "modprobe bonding max_bonds=0 && ip link add lag type bond mode 802.3ad miimon 100 lacp_rate fast && ip link set wan5 master lag && " +
				"ip link set wan6 master lag && ip link set lag up && ip link add link lag name lag.300 type vlan id 300 && ip link set lag.300 up && " +
				"ip address add 10.9.3.1/24 dev lag.300",
			ask:  `sed -n 's/^\tNumber of ports: /ports /p; s/^\tPartner Mac Address: /partner /p' /proc/net/bonding/lag`,
			then: "ports 2\npartner 52:54:00:00:02:04\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := bounded(t, limit)
			shell(t, ctx, peer.host, c.setup)
			port := freePort(t)
			config := quick(t, vm.BIOS, c.words)
			config.Networks = nil
			for _, n := range c.cables {
				config.Networks = append(config.Networks, vm.Network{MAC: fmt.Sprintf("52:54:00:00:02:%02x", n), Switch: peer.cable(n), Speed: 1000})
			}
			m := boot(t, config)
			p := manageBehind(t, initializer.TakeoverKexec, port, peer.connect(t, ctx, c.own, c.guest, port), c.own, nil)
			awaitCarried(t, ctx, p, m)
			if c.ask != "" {
				if got := shell(t, ctx, peer.host, c.ask); got != c.then {
					t.Errorf("the peer says %q, want %q", got, c.then)
				}
			}
		})
	}
}

// The old system's network cannot be carried over, or leads nowhere: the agent in memory asks for
// an address by DHCP, and connects.
func TestDHCP(t *testing.T) {
	onDemand(t)
	t.Parallel()
	for _, c := range []struct{ name, words, because string }{
		{"an interface of a kind that is not carried", "test.macvlan=mac0", "no address could be carried over; DHCP is asked"},
		// Only the host that SSH comes from can be reached; the control plane is another one for it.
		{"no route to the control plane", "test.address=10.0.2.15/32 test.only=10.0.2.2", "leads to the control plane; DHCP is asked"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx := bounded(t, limit)
			port := freePort(t)
			m := boot(t, quick(t, vm.BIOS, c.words, port))
			p := manage(t, initializer.TakeoverKexec, port, m, nil)
			cards := awaitHardware(t, ctx, p, m).GetNetworkInterfaces()
			if !slices.ContainsFunc(cards, func(card *agentv1.NetworkInterface) bool { return slices.Contains(card.GetAddresses(), "10.0.2.15/24") }) {
				t.Errorf("no address of DHCP: %v", cards)
			}
			for _, words := range []string{c.because, "DHCP gave an address"} {
				if !strings.Contains(m.Console(), words) {
					t.Errorf("the agent in memory has not said %q", words)
				}
			}
		})
	}
}

// awaitCarried waits for the hardware report of an agent in memory, which must not have asked DHCP
// for an address, and returns it.
func awaitCarried(t *testing.T, ctx context.Context, p *plane, m *vm.Machine) *agentv1.HardwareReport {
	t.Helper()
	report := awaitHardware(t, ctx, p, m)
	if strings.Contains(m.Console(), "DHCP is asked") {
		t.Error("the network was not carried over")
	}
	return report
}

// awaitHardware waits for the hardware report of an agent in memory, and returns it.
func awaitHardware(t *testing.T, ctx context.Context, p *plane, m *vm.Machine) *agentv1.HardwareReport {
	t.Helper()
	started := time.Now()
	var report *agentv1.HardwareReport
	await(t, ctx, "hardware report", func() error {
		machine, err := p.machine(ctx)
		if err == nil && machine.GetHardware() == nil {
			err = errors.New("the machine is " + machine.GetMachine().GetState() + ": " + machine.GetMachine().GetReason())
		}
		report = machine.GetHardware()
		return err
	})
	if !strings.Contains(m.Console(), "the agent is in memory") {
		t.Error("the agent that reports is not in memory")
	}
	for _, card := range report.GetNetworkInterfaces() {
		t.Logf("%s: MTU %d, addresses %v", card.GetName(), card.GetMtu(), card.GetAddresses())
	}
	t.Logf("taken over and connected after %.1f s", time.Since(started).Seconds())
	return report
}
