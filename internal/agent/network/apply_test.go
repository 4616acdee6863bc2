package network

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// An interface that stands on one without a link is waited for: the kernel calls it lower layer
// down, not down. It carries no address out until the link is there.
func TestLowerLayerDown(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	near := newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"})
	upper := newLink(t, &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "upper", ParentIndex: near.Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE})
	far := named(t, "far")
	var log bytes.Buffer
	a := &applier{
		log: slog.New(slog.NewTextHandler(&log, nil)),
		network: &agentv1.Network{Links: []*agentv1.NetworkLink{
			{Name: "near"}, {Name: "upper", Kind: "vlan", Addresses: []*agentv1.NetworkAddress{{Prefix: "192.0.2.7/24"}}},
		}},
	}
	if err := addAddress(upper, a.network.GetLinks()[1].GetAddresses()[0]); err != nil {
		t.Fatal(err)
	}
	if state := named(t, "upper").Attrs().OperState; state != netlink.OperLowerLayerDown {
		t.Fatalf("the interface is %s: this test shows nothing", state)
	}
	if a.reachable() {
		t.Error("an address counts whose interface stands on one without a link")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	a.awaitCarrier(ended)
	if !strings.Contains(log.String(), "link=upper") {
		t.Errorf("the interface is not waited for: %q", log.String())
	}

	log.Reset()
	if err := netlink.LinkSetUp(far); err != nil {
		t.Fatal(err)
	}
	a.awaitCarrier(t.Context())
	if log.Len() > 0 || !a.reachable() {
		t.Errorf("with a link it is waited for (%q), or is not reachable", log.String())
	}
}

// newLink makes an interface and brings it up.
func newLink(t *testing.T, made netlink.Link) netlink.Link {
	t.Helper()
	if err := netlink.LinkAdd(made); err != nil {
		t.Fatal(err)
	}
	found := named(t, made.Attrs().Name)
	if err := netlink.LinkSetUp(found); err != nil {
		t.Fatal(err)
	}
	return found
}

func named(t *testing.T, name string) netlink.Link {
	t.Helper()
	found, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return found
}
