package install

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

func address(prefix string, lifetime int64) *agentv1.NetworkAddress {
	return &agentv1.NetworkAddress{Prefix: prefix, LifetimeMs: lifetime}
}

// networks are what a host has, and what its installed system is told of it.
var networks = map[string]struct {
	network *agentv1.Network
	want    string
}{
	"none": {nil, ""},
	"DHCP": {&agentv1.Network{
		Links:  []*agentv1.NetworkLink{{Name: "eth0", Mac: "02:00:00:00:00:01", Mtu: 1400, Addresses: []*agentv1.NetworkAddress{address("192.0.2.7/24", 1), address("2001:db8::7/64", 1)}}},
		Routes: []*agentv1.NetworkRoute{{Link: "eth0", Gateway: "192.0.2.1"}},
	}, ""},
	"static": {&agentv1.Network{
		Links: []*agentv1.NetworkLink{
			{Name: "eno1", Mac: "02:00:00:00:00:01", Mtu: 1500, Addresses: []*agentv1.NetworkAddress{address("192.0.2.7/32", 0), address("2001:db8::7/64", 0)}},
			{Name: "eno2", Mac: "02:00:00:00:00:02", Mtu: 9000},
		},
		Routes: []*agentv1.NetworkRoute{
			{Link: "eno1", Gateway: "198.51.100.1", OnLink: true},
			{Link: "eno1", Gateway: "fe80::1", Ipv6: true, Metric: 1024},
			{Link: "eno1", Destination: "203.0.113.0/24", Metric: math.MinInt32},
			{Link: "eno1", Destination: "2001:db8:1::/48", Gateway: "fe80::2", Ipv6: true, Dynamic: true},
		},
		ResolvConf: []byte("domain old\nsearch example.com b_d lan\nnameserver 192.0.2.53\nnameserver fe80::1%eno1\nnameserver 2001:db8::53\noptions edns0\n"),
	}, `version: 2
ethernets:
  "eno1":
    match: {macaddress: "02:00:00:00:00:01"}
    set-name: "eno1"
    addresses: ["192.0.2.7/32", "2001:db8::7/64"]
    nameservers:
      addresses: ["192.0.2.53", "2001:db8::53"]
      search: ["example.com", "lan"]
    routes:
    - to: "0.0.0.0/0"
      via: "198.51.100.1"
      on-link: true
    - to: "::/0"
      via: "fe80::1"
      metric: 1024
    - to: "203.0.113.0/24"
      scope: link
      metric: 2147483647
`},
	"a point-to-point address": {&agentv1.Network{
		Links: []*agentv1.NetworkLink{{Name: "eth0", Mac: "02:00:00:00:00:01", Addresses: []*agentv1.NetworkAddress{
			{Prefix: "203.0.113.5/32", Peer: "203.0.113.1/32"}, address("2001:db8::5/128", 0),
		}}},
		Routes: []*agentv1.NetworkRoute{
			{Link: "eth0", Gateway: "203.0.113.1"}, {Link: "eth0", Gateway: "2001:db8::1", Ipv6: true}, {Link: "eth0", Gateway: "fe80::1", Ipv6: true, Metric: 9},
		},
		ResolvConf: []byte("nameserver 192.0.2.53\n"),
	}, `version: 2
ethernets:
  "eth0":
    match: {macaddress: "02:00:00:00:00:01"}
    set-name: "eth0"
    addresses: ["203.0.113.5/32", "2001:db8::5/128"]
    nameservers:
      addresses: ["192.0.2.53"]
    routes:
    - to: "0.0.0.0/0"
      via: "203.0.113.1"
      on-link: true
    - to: "::/0"
      via: "2001:db8::1"
      on-link: true
    - to: "::/0"
      via: "fe80::1"
      metric: 9
`},
	"one static, one by DHCP": {&agentv1.Network{
		Links: []*agentv1.NetworkLink{
			{Name: "eth0", Mac: "02:00:00:00:00:01", Addresses: []*agentv1.NetworkAddress{address("192.0.2.7/24", 3600_000), address("2001:db8::9/128", 3600_000)}},
			{Name: "eth1", Mac: "02:00:00:00:00:02", Addresses: []*agentv1.NetworkAddress{address("10.0.0.7/8", 0)}},
		},
		Routes: []*agentv1.NetworkRoute{
			{Link: "eth0", Gateway: "192.0.2.1", Metric: 100}, {Link: "eth0", Destination: "203.0.113.0/24", Gateway: "192.0.2.2"},
		},
	}, `version: 2
ethernets:
  "eth0":
    match: {macaddress: "02:00:00:00:00:01"}
    set-name: "eth0"
    dhcp4: true
    dhcp6: true
    routes:
    - to: "203.0.113.0/24"
      via: "192.0.2.2"
  "eth1":
    match: {macaddress: "02:00:00:00:00:02"}
    set-name: "eth1"
    addresses: ["10.0.0.7/8"]
`},
	"a VLAN on a bond, and a bridge": {&agentv1.Network{
		Links: []*agentv1.NetworkLink{
			{Name: "eth0", Mac: "02:00:00:00:00:01", Mtu: 9000},
			{Name: "eth1", Mac: "02:00:00:00:00:02", Mtu: 9000},
			{Name: "eth2", Mac: "02:00:00:00:00:03", Mtu: 1500},
			{Name: "bond0", Mac: "02:00:00:00:00:01", Kind: "bond", Mtu: 9000, Lower: []string{"eth0", "eth1"}, Bond: &agentv1.Bond{Mode: 4, XmitHashPolicy: 1, LacpRate: 1}},
			{Name: "bond0.7", Mac: "02:00:00:00:00:01", Kind: "vlan", VlanId: 7, Lower: []string{"bond0"}, Addresses: []*agentv1.NetworkAddress{address("192.0.2.7/24", 3600_000)}},
			{Name: "br0", Mac: "02:00:00:00:00:03", Kind: "bridge", Lower: []string{"eth2", "vnet1"}, Addresses: []*agentv1.NetworkAddress{address("10.0.0.7/8", 0)}},
		},
	}, `version: 2
ethernets:
  "eth0":
    match: {macaddress: "02:00:00:00:00:01"}
    set-name: "eth0"
    mtu: 9000
  "eth1":
    match: {macaddress: "02:00:00:00:00:02"}
    set-name: "eth1"
    mtu: 9000
  "eth2":
    match: {macaddress: "02:00:00:00:00:03"}
    set-name: "eth2"
bonds:
  "bond0":
    interfaces: ["eth0", "eth1"]
    macaddress: "02:00:00:00:00:01"
    parameters:
      mode: "802.3ad"
      mii-monitor-interval: 100
      lacp-rate: "fast"
      transmit-hash-policy: "layer3+4"
    mtu: 9000
bridges:
  "br0":
    interfaces: ["eth2"]
    macaddress: "02:00:00:00:00:03"
    parameters:
      stp: false
    addresses: ["10.0.0.7/8"]
vlans:
  "bond0.7":
    id: 7
    link: "bond0"
    dhcp4: true
`},
	"an interface without a MAC address": {&agentv1.Network{
		Links: []*agentv1.NetworkLink{{Name: "ib0", Mac: "80:00:00:01:fe:80:00:00:00:00:00:00:00:02:c9:03:00:1b:1d:cf", Addresses: []*agentv1.NetworkAddress{address("10.0.0.7/8", 0)}}},
	}, "error"},
}

func TestNetworkConfig(t *testing.T) {
	t.Parallel()
	for name, test := range networks {
		got, err := networkConfig(test.network)
		if (err != nil) != (test.want == "error") || err == nil && string(got) != test.want {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
		if python, missing := exec.LookPath("python3"); missing == nil && err == nil && len(got) > 0 {
			read := exec.CommandContext(t.Context(), python, "-c", "import sys\ntry: import yaml\nexcept ImportError: sys.exit(0)\nassert yaml.safe_load(sys.stdin)['version'] == 2")
			read.Stdin = strings.NewReader(string(got))
			if out, err := read.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", name, err, out)
			}
		}
	}
}

// A VLAN of 802.1ad would come up as one of 802.1Q. It is left out, with what stands on it alone,
// and that is told where an address needs it.
func TestServiceVlan(t *testing.T) {
	t.Parallel()
	const left = "what is on VLANs of 802.1ad is left out, because a network-config does not know them: "
	static := []*agentv1.NetworkAddress{address("192.0.2.7/24", 0)}
	hardware := &agentv1.NetworkLink{Name: "eth0", Mac: "02:00:00:00:00:01", Addresses: static}
	bare := &agentv1.NetworkLink{Name: "eth0", Mac: "02:00:00:00:00:01"}
	spare := &agentv1.NetworkLink{Name: "eth1", Mac: "02:00:00:00:00:02"}
	vlan := func(name, lower string, protocol int32, addresses ...*agentv1.NetworkAddress) *agentv1.NetworkLink {
		return &agentv1.NetworkLink{Name: name, Kind: "vlan", VlanId: 5, VlanProtocol: protocol, Lower: []string{lower}, Addresses: addresses}
	}
	bridge := func(lower ...string) *agentv1.NetworkLink {
		return &agentv1.NetworkLink{Name: "br0", Kind: "bridge", Lower: lower, Addresses: static}
	}
	for name, test := range map[string]struct {
		links []*agentv1.NetworkLink
		told  string
		left  string
	}{
		"beside a static address":      {[]*agentv1.NetworkLink{vlan("s", "eth0", 0x88a8, static...), hardware}, "eth0", left + "s"},
		"alone on an interface":        {[]*agentv1.NetworkLink{spare, vlan("s", "eth1", 0x88a8, static...), hardware}, "eth0", left + "s"},
		"from DHCP alone":              {[]*agentv1.NetworkLink{bare, vlan("s", "eth0", 0x88a8, address("192.0.2.7/24", 1))}, "", left + "s"},
		"without an address":           {[]*agentv1.NetworkLink{hardware, vlan("s", "eth0", 0x88a8)}, "eth0", ""},
		"under others":                 {[]*agentv1.NetworkLink{bridge("c"), vlan("c", "s", 0), vlan("s", "eth0", 0x88a8), hardware}, "eth0", left + "s, c, br0"},
		"in a bridge beside another":   {[]*agentv1.NetworkLink{bridge("c", "s"), vlan("c", "eth0", 0), vlan("s", "eth0", 0x88a8), bare}, "eth0 br0 c", left + "s"},
		"802.1Q, by its own EtherType": {[]*agentv1.NetworkLink{bare, vlan("c", "eth0", 0x8100, static...)}, "eth0 c", ""},
		"a bridge of unknown members":  {[]*agentv1.NetworkLink{bridge("vnet1")}, "br0", ""},
	} {
		given := &agentv1.Network{Links: test.links, ResolvConf: []byte("nameserver 192.0.2.53\n")}
		before := proto.CloneOf(given)
		got, err := networkConfig(given)
		var told []string
		for line := range strings.SplitSeq(string(got), "\n") {
			if link, is := strings.CutPrefix(line, "  \""); is {
				told = append(told, strings.TrimSuffix(link, "\":"))
			}
		}
		warning := ""
		if err != nil {
			warning = err.Error()
		}
		if strings.Join(told, " ") != test.told || warning != test.left || strings.Contains(string(got), `"s"`) {
			t.Errorf("%s: told of %q, warning %q\n%s", name, told, warning, got)
		}
		if !proto.Equal(given, before) {
			t.Errorf("%s: the network itself is changed: %v", name, given)
		}
	}
}

// A switch may answer DHCP on the VLAN or the bond alone: a bridge over one is told, although its
// address is from DHCP. One over bare hardware is not.
func TestLeasedBridge(t *testing.T) {
	t.Parallel()
	eth0, eth1 := &agentv1.NetworkLink{Name: "eth0", Mac: "02:00:00:00:00:01"}, &agentv1.NetworkLink{Name: "eth1", Mac: "02:00:00:00:00:02"}
	bond := &agentv1.NetworkLink{Name: "bond0", Mac: "02:00:00:00:00:01", Kind: "bond", Lower: []string{"eth0", "eth1"}, Bond: &agentv1.Bond{Mode: 4}}
	vlan := &agentv1.NetworkLink{Name: "eth0.7", Kind: "vlan", VlanId: 7, Lower: []string{"eth0"}}
	for lower, want := range map[string]bool{"bond0": true, "eth0.7": true, "eth0": false} {
		n := &agentv1.Network{Links: []*agentv1.NetworkLink{eth0, eth1, bond, vlan, {
			Name: "br0", Mac: "02:00:00:00:00:01", Kind: "bridge", Lower: []string{lower}, Addresses: []*agentv1.NetworkAddress{address("192.0.2.7/24", 3600_000)},
		}}}
		got, err := networkConfig(n)
		whole := strings.Contains(string(got), "  \"br0\":\n    interfaces: [\""+lower+"\"]") && strings.Contains(string(got), "  \""+lower+"\":\n") && strings.Contains(string(got), "dhcp4: true")
		if err != nil || whole != want || (len(got) > 0) != want {
			t.Errorf("a bridge over %s: %v\n%s", lower, err, got)
		}
	}
}

// A router marks the default route that it gave, and DHCPv6 gives none: one of IPv6 that is not
// marked is somebody's, also beside an address from a router. That of IPv4 may be DHCP's.
func TestDefaultRouteBesideLease(t *testing.T) {
	t.Parallel()
	const kept = "\n    - to: \"::/0\"\n      via: \"fe80::1\"\n"
	for name, test := range map[string]struct {
		addresses []*agentv1.NetworkAddress
		route     *agentv1.NetworkRoute
		want      bool
	}{
		"somebody's":          {[]*agentv1.NetworkAddress{address("2001:db8::77/64", 1)}, &agentv1.NetworkRoute{Gateway: "fe80::1", Ipv6: true}, true},
		"beside DHCPv6":       {[]*agentv1.NetworkAddress{address("2001:db8::77/128", 1)}, &agentv1.NetworkRoute{Gateway: "fe80::1", Ipv6: true}, true},
		"the router's":        {[]*agentv1.NetworkAddress{address("2001:db8::77/64", 1)}, &agentv1.NetworkRoute{Gateway: "fe80::1", Ipv6: true, Dynamic: true}, false},
		"DHCP's, not marked":  {[]*agentv1.NetworkAddress{address("198.51.100.7/24", 1)}, &agentv1.NetworkRoute{Gateway: "198.51.100.1"}, false},
		"of IPv6 beside DHCP": {[]*agentv1.NetworkAddress{address("198.51.100.7/24", 1)}, &agentv1.NetworkRoute{Gateway: "fe80::1", Ipv6: true}, true},
	} {
		test.route.Link = "eth0"
		got, err := networkConfig(&agentv1.Network{
			Links:      []*agentv1.NetworkLink{{Name: "eth0", Mac: "02:00:00:00:00:01", Addresses: append(test.addresses, address("192.0.2.7/24", 0))}},
			Routes:     []*agentv1.NetworkRoute{test.route},
			ResolvConf: []byte("nameserver 192.0.2.53\n"),
		})
		if err != nil || strings.Contains(string(got), kept) != test.want || strings.Contains(string(got), "routes:") != test.want {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
}

// An installed system that gets static addresses and no name server has its network all the same,
// and the install says what is not there. DHCP and routers tell of name servers.
func TestNetworkWithoutNameServers(t *testing.T) {
	t.Parallel()
	const unnamed = "no name server is known, so it finds no names unless its image or its first-boot data has one"
	static, leased := address("192.0.2.7/24", 0), address("2001:db8::7/64", 1)
	for name, test := range map[string]struct {
		addresses []*agentv1.NetworkAddress
		protocol  int32 // of a VLAN with a static address; 0: there is none
		resolver  string
		warning   string
	}{
		"static":                            {addresses: []*agentv1.NetworkAddress{static}, warning: unnamed},
		"static, with a name server":        {addresses: []*agentv1.NetworkAddress{static}, resolver: "nameserver 192.0.2.53\n"},
		"static, and from a router":         {addresses: []*agentv1.NetworkAddress{static, leased}},
		"static, and something left out":    {[]*agentv1.NetworkAddress{static}, 0x88a8, "", "because a network-config does not know them: s; " + unnamed},
		"static, and asks itself":           {addresses: []*agentv1.NetworkAddress{static}, resolver: "nameserver 192.0.2.7\n", warning: unnamed},
		"static, and asks itself and one":   {addresses: []*agentv1.NetworkAddress{static}, resolver: "nameserver 192.0.2.7\nnameserver 192.0.2.70\n"},
		"static, asks what is left out":     {[]*agentv1.NetworkAddress{static}, 0x88a8, "nameserver 10.0.0.7\n", "because a network-config does not know them: s; " + unnamed},
		"static, with a domain and no more": {addresses: []*agentv1.NetworkAddress{static}, resolver: "search example.com\n", warning: unnamed},
	} {
		n := &agentv1.Network{Links: []*agentv1.NetworkLink{{Name: "eth0", Mac: "02:00:00:00:00:01", Addresses: test.addresses}}, ResolvConf: []byte(test.resolver)}
		if test.protocol != 0 {
			n.Links = append(n.Links, &agentv1.NetworkLink{
				Name: "s", Kind: "vlan", VlanId: 5, VlanProtocol: test.protocol, Lower: []string{"eth0"}, Addresses: []*agentv1.NetworkAddress{address("10.0.0.7/8", 0)},
			})
		}
		got, err := networkConfig(n)
		warning := ""
		if err != nil {
			warning = err.Error()
		}
		if len(got) == 0 || !strings.HasSuffix(warning, test.warning) || (warning == "") != (test.warning == "") {
			t.Errorf("%s: warning %q\n%s", name, warning, got)
		}
		if own := "addresses: [\"192.0.2.7\""; strings.Contains(string(got), own) {
			t.Errorf("%s: it is its own name server\n%s", name, got)
		}
	}
}

func TestHostName(t *testing.T) {
	t.Parallel()
	for machine, want := range map[string]string{
		"herd-0007": "herd-0007", "db1.example.com": "db1.example.com", "rack_4/slot 2": "rack-4-slot-2", "": "", "192.0.2.7": "", "2001:db8::7": "",
		"größe": "gr--e", "-.-": "", "a..b": "", strings.Repeat("x", 64): "", strings.Repeat("x", 63): strings.Repeat("x", 63),
	} {
		if got := hostName(machine); got != want {
			t.Errorf("%q: %q, want %q", machine, got, want)
		}
	}
}

// What a seed has besides the user-data: name and network, unless the request or the user-data
// wants it otherwise.
func TestNameAndNetwork(t *testing.T) {
	t.Parallel()
	static := networks["static"].network
	service := proto.CloneOf(static)
	service.Links = append(service.Links, &agentv1.NetworkLink{
		Name: "eno2.5", Kind: "vlan", VlanId: 5, VlanProtocol: 0x88a8, Lower: []string{"eno2"}, Addresses: []*agentv1.NetworkAddress{address("10.0.0.7/8", 0)},
	})
	const noCloud, dataOnly = agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD, agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD_USER_DATA
	const id = "instance-id: m-3-2\n"
	for name, test := range map[string]struct {
		form       agentv1.FirstBootForm
		userData   string
		network    *agentv1.Network
		meta       string
		configured bool
		warning    string
	}{
		"static": {noCloud, "#cloud-config\nusers: []\n", static, id + "local-hostname: \"herd-0007\"\n", true, ""},
		"DHCP":   {noCloud, "#cloud-config\n", networks["DHCP"].network, id + "local-hostname: \"herd-0007\"\n", false, ""},
		"a network of its own": {
			noCloud, "#cloud-config\nwrite_files:\n- path: /etc/netplan/50.yaml\n", static, id + "local-hostname: \"herd-0007\"\n", false,
			"the installed system is not told the machine's network, which is left to its first-boot data: that names /etc/netplan",
		},
		"only the user-data": {dataOnly, "#cloud-config\n", static, id, false, ""},
		"no MAC address": {
			noCloud, "", networks["an interface without a MAC address"].network, id + "local-hostname: \"herd-0007\"\n", false,
			"the installed system is not told the machine's network: ib0: it has no MAC address",
		},
		"a VLAN of 802.1ad": {
			noCloud, "", service, id + "local-hostname: \"herd-0007\"\n", true,
			"the installed system is not told the whole of the machine's network: what is on VLANs of 802.1ad is left out, because a network-config does not know them: eno2.5",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			image := partitioned(t)
			m, options := bigMachine(t)
			options.Network = test.network
			request := requestFor(serveBytes(t, image), image)
			request.Image.FirstBootForm, request.FirstBootData, request.MachineName = test.form, []byte(test.userData), "herd-0007"
			report := Run(t.Context(), request, options)
			if warnings := strings.Join(report.GetWarnings(), "\n"); !report.GetOk() || !strings.Contains(warnings, test.warning) || test.warning == "" && strings.Contains(warnings, "NoCloud") {
				t.Fatalf("%q, warnings %q", report.GetError(), warnings)
			}
			disk, err := os.ReadFile(m.disk)
			if err != nil {
				t.Fatal(err)
			}
			at := FirstBootOffset(int64(len(disk))) - seedSize
			file := filepath.Join(t.TempDir(), "seed")
			if err := os.WriteFile(file, disk[at:at+seedSize], 0o600); err != nil {
				t.Fatal(err)
			}
			tool(t, "", "fsck.fat", "-n", file)
			if got := tool(t, "", "mtype", "-i", file, "::meta-data"); got != test.meta {
				t.Errorf("meta-data: %q, want %q", got, test.meta)
			}
			if listed := tool(t, "", "mdir", "-b", "-i", file); strings.Contains(listed, "network-config") != test.configured {
				t.Errorf("its files: %s", listed)
			}
			if !test.configured {
				return
			}
			if got := tool(t, "", "mtype", "-i", file, "::network-config"); got != networks["static"].want {
				t.Errorf("network-config: %s", got)
			}
		})
	}
}
