package network

import (
	"net"
	"os"
	"path/filepath"
	"strings"
)

// files reads the resolver's configuration and what else is known of names.
func (c *capture) files() {
	c.network.ResolvConf = resolver("/")
	c.network.Hosts = small("/etc/hosts")
	c.network.Hostname, _ = os.Hostname()
	if len(c.network.ResolvConf) == 0 {
		c.warn("no name server is known")
	}
}

// resolver returns the configuration of the name servers that are really asked. A resolver of the
// host's own, on a loopback address, would not be there any more; systemd's keeps the list of the
// servers behind it.
func resolver(root string) []byte {
	for _, path := range []string{"etc/resolv.conf", "run/systemd/resolve/resolv.conf", "run/NetworkManager/no-stub-resolv.conf"} {
		text := small(filepath.Join(root, path))
		var kept []string
		servers := false
		for _, line := range strings.Split(string(text), "\n") {
			fields := strings.Fields(line)
			if len(fields) == 0 || strings.HasPrefix(fields[0], "#") || strings.HasPrefix(fields[0], ";") {
				continue
			}
			if fields[0] == "nameserver" {
				if len(fields) < 2 || net.ParseIP(fields[1]).IsLoopback() {
					continue
				}
				// The number of an interface may be another's in memory.
				if address, zone, ok := strings.Cut(fields[1], "%"); ok {
					fields[1] = address + "%" + interfaceName(zone)
				}
				servers = true
			}
			kept = append(kept, strings.Join(fields, " "))
		}
		if servers {
			return []byte(strings.Join(kept, "\n") + "\n")
		}
	}
	return nil
}
