package install

import (
	"path"
	"slices"
	"strings"
)

// networkFiles are the files of whatever makes the network, as patterns of package path.
var networkFiles = []string{
	"/etc/netplan/*.yaml", "/etc/systemd/network/*.network", "/etc/NetworkManager/system-connections/?*",
	"/etc/network/interfaces", "/etc/network/interfaces.d/?*", "/etc/sysconfig/network-scripts/ifcfg-*", "/etc/sysconfig/network/ifcfg-*",
}

// cloudConfigFile is a file of cloud-init's own configuration, which may have the key network.
const cloudConfigFile = "/etc/cloud/cloud.cfg.d/*.cfg"

// ownNetwork returns the pattern of a file by which user-data brings a network of its own, "" where
// it has none. Comments do not count. The key network of the user-data itself does not either:
// cloud-init takes a network from the datasource, from its configuration and from the kernel's
// command line, and from no user-data.
func ownNetwork(userData []byte) string {
	var config, key, disabled bool
	for line := range strings.Lines(string(userData)) {
		for _, word := range strings.FieldsFunc(line, func(r rune) bool { return r <= ' ' || strings.ContainsRune("\"'`<>|&;(),=", r) }) {
			if word[0] == '#' {
				break
			}
			word = strings.Trim(word, "{}[]")
			is := func(pattern string) bool {
				matched, _ := path.Match(pattern, word) // the patterns are well-formed
				return matched
			}
			if i := slices.IndexFunc(networkFiles, is); i >= 0 {
				return networkFiles[i]
			}
			config, key, disabled = config || is(cloudConfigFile), key || word == "network:", disabled || word == "disabled"
		}
	}
	if config && key && !disabled { // "config: disabled" brings none
		return cloudConfigFile
	}
	return ""
}
