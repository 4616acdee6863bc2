package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/install"
)

// nameWait is how long the names may take to be found that an agent in memory needs.
const nameWait = 10 * time.Second

// pinNames adds to the hosts of a network without a name server that it leads to what an agent in
// memory calls by a name: the control plane, and the image that it jumps for. Nobody in memory
// would tell it their addresses: a resolver of the host's own, or one behind a tunnel, can be
// asked before the jump alone. The warnings say which addresses are kept so.
func pinNames(
	ctx context.Context, carried *agentv1.Network, state *agentv1.AgentState,
	asks func(*agentv1.Network, netip.Addr) bool, lookup func(ctx context.Context, host string) ([]string, error),
) (warnings []string, err error) {
	if slices.ContainsFunc(install.NameServers(carried), func(server netip.Addr) bool { return asks(carried, server) }) {
		return nil, nil
	}
	plane, _, err := net.SplitHostPort(state.GetInit().GetEndpoint())
	if err != nil {
		return nil, fmt.Errorf("the endpoint is not host:port: %w", err)
	}
	needed := []string{plane}
	request := new(agentv1.InstallRequest)
	if proto.Unmarshal(state.GetPendingInstall(), request) == nil {
		if image, err := url.Parse(request.GetImage().GetUrl()); err == nil && image.Hostname() != plane {
			needed = append(needed, image.Hostname())
		}
	}
	ctx, cancel := context.WithTimeout(ctx, nameWait)
	defer cancel()
	for _, name := range needed {
		if _, err := netip.ParseAddr(name); err == nil || name == "" {
			continue
		}
		addresses, err := lookup(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("no name server is known that can be asked in memory, and this host does not find %s: "+
				"give it a name server in /etc/resolv.conf that is another host and reached without a tunnel, or %s in /etc/hosts: %w", name, name, err)
		}
		for _, address := range addresses {
			carried.Hosts = fmt.Appendf(carried.Hosts, "\n%s %s\n", address, name)
		}
		warnings = append(warnings, fmt.Sprintf("the agent in memory takes %s to be at %s for as long as it is there", name, strings.Join(addresses, ", ")))
	}
	return warnings, nil
}
