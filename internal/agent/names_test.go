package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// Where no name server is carried into memory, the addresses of what is called by a name are. There
// is no jump to where the control plane, or the image that it is for, could not be found.
func TestNamesArePinned(t *testing.T) {
	t.Parallel()
	known := map[string][]string{"plane.example": {"192.0.2.1", "2001:db8::1"}, "images.example": {"192.0.2.2"}}
	const (
		plane  = "\n192.0.2.1 plane.example\n\n2001:db8::1 plane.example\n"
		images = "\n192.0.2.2 images.example\n"
	)
	for name, test := range map[string]struct {
		endpoint, image, resolver string
		added                     string // to the hosts
		warned                    []string
		err                       string
	}{
		"a name server":        {endpoint: "plane.example:443", image: "https://nowhere.example/os", resolver: "nameserver 192.0.2.53\n"},
		"a server of its own":  {"plane.example:443", "", "search example\nnameserver 192.0.2.7\n", plane, []string{"plane.example to be at 192.0.2.1, 2001:db8::1"}, ""},
		"its own, not carried": {"plane.example:443", "", "nameserver 10.53.0.1\nnameserver 2001:db8::53\n", plane, []string{"plane.example to be at 192.0.2.1, 2001:db8::1"}, ""},
		"behind a tunnel":      {"plane.example:443", "", "nameserver 10.8.0.1\n", plane, []string{"plane.example to be at 192.0.2.1, 2001:db8::1"}, ""},
		"not carried, and one": {endpoint: "plane.example:443", resolver: "nameserver 10.53.0.1\nnameserver 10.53.0.11\n"},
		"a router's, on links": {endpoint: "plane.example:443", resolver: "nameserver fe80::1%eth0\n"},
		"its own, and another": {endpoint: "plane.example:443", resolver: "nameserver 192.0.2.7\nnameserver 192.0.2.70\n"},
		"an address":           {endpoint: "192.0.2.1:443", image: "http://[2001:db8::2]:80/os"},
		"one with a zone":      {endpoint: "[fe80::1%eth0]:443"},
		"names":                {"plane.example:443", "oci://images.example:5000/os", "", plane + images, []string{"plane.example to be at 192.0.2.1, 2001:db8::1", "images.example to be at 192.0.2.2"}, ""},
		"one name for both":    {"plane.example:443", "https://plane.example/os", "", plane, []string{"plane.example to be at 192.0.2.1, 2001:db8::1"}, ""},
		"no install":           {"plane.example:443", "", "", plane, []string{"plane.example to be at 192.0.2.1, 2001:db8::1"}, ""},
		"an unknown plane":     {endpoint: "nowhere.example:443", err: "this host does not find nowhere.example: give it a name server in /etc/resolv.conf that"},
		"an unknown image":     {endpoint: "192.0.2.1:443", image: "https://nowhere.example/os", err: "or nowhere.example in /etc/hosts"},
		"an image elsewhere":   {"192.0.2.1:443", "https://images.example/os", "", images, []string{"images.example to be at 192.0.2.2"}, ""},
	} {
		state := &agentv1.AgentState{Init: &agentv1.TakeoverInit{Endpoint: test.endpoint}}
		if test.image != "" {
			var err error
			if state.PendingInstall, err = proto.Marshal(&agentv1.InstallRequest{Image: &agentv1.Image{Url: test.image}}); err != nil {
				t.Fatal(err)
			}
		}
		const before = "127.0.0.1 localhost" // the line does not end
		carried := &agentv1.Network{
			ResolvConf: []byte(test.resolver), Hosts: []byte(before),
			Links: []*agentv1.NetworkLink{{Name: "eth0", Addresses: []*agentv1.NetworkAddress{{Prefix: "192.0.2.7/24"}}}},
		}
		asks := func(_ *agentv1.Network, server netip.Addr) bool {
			// lo has two of them, and a tunnel leads to one
			return !slices.Contains([]string{"10.53.0.1", "2001:db8::53", "10.8.0.1"}, server.String())
		}
		warnings, err := pinNames(t.Context(), carried, state, asks, func(_ context.Context, host string) ([]string, error) {
			if known[host] == nil {
				return nil, errors.New("no such host")
			}
			return known[host], nil
		})
		if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && string(carried.GetHosts()) != before+test.added {
			t.Errorf("%s: %q", name, carried.GetHosts())
		}
		if !slices.EqualFunc(warnings, test.warned, strings.Contains) {
			t.Errorf("%s: %s", name, fmt.Sprintf("%q", warnings))
		}
	}
}
