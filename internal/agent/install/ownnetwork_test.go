package install

import (
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// The network is left to user-data alone that names a place of whatever makes it; a warning says
// so. cloud-init takes no network from the user-data itself: a system that is told none asks DHCP.
func TestNetworkOfUserData(t *testing.T) {
	t.Parallel()
	const cloudConfig = "#cloud-config\n"
	file := func(path, content string) string {
		return cloudConfig + "write_files:\n- path: " + path + "\n  content: |\n    " + strings.ReplaceAll(content, "\n", "\n    ") + "\n"
	}
	for name, test := range map[string]struct {
		userData string
		left     string // what the warning names; empty: the system is told its network
	}{
		"none":                                  {"", ""},
		"the key, which cloud-init passes over": {cloudConfig + "network:\n  version: 2\n  ethernets: {eno1: {dhcp4: true}}\n", ""},
		"netplan":                               {file("/etc/netplan/50-own.yaml", "network: {version: 2}"), "/etc/netplan"},
		"netplan, in quotes and braces":         {cloudConfig + `write_files: [{path: "/etc/netplan/50-own.yaml"}, {content: "", path: /x}]` + "\n", "/etc/netplan"},
		"netplan, last in braces":               {cloudConfig + "write_files: [{content: '', path: /etc/netplan/50-own.yaml}]\n", "/etc/netplan"},
		"netplan, by a script":                  {"#!/bin/sh\ncat >/etc/netplan/$LINK.yaml <<.\nnetwork: {version: 2}\n.\n", "/etc/netplan"},
		"netplan's commands":                    {cloudConfig + "runcmd:\n- netplan apply\n", ""},
		"modes in netplan's directory":          {cloudConfig + "runcmd:\n- [chmod, '700', /etc/netplan]\n- chmod 600 /etc/netplan/50-cloud-init.yaml\n- rm -f /etc/netplan/00-installer-config.yaml\n", ""},
		"a file and its mode":                   {"#!/bin/sh\necho '{network: {version: 2}}' >/etc/netplan/50-own.yaml; chmod 600 /etc/netplan/50-own.yaml\n", "/etc/netplan"},
		"a copy and its mode":                   {"#!/bin/sh\ncp /root/own.yaml /etc/netplan/50-own.yaml && chmod 600 /etc/netplan/50-own.yaml\n", "/etc/netplan"},
		"netplan's directory":                   {cloudConfig + "runcmd:\n- cd /etc/netplan && cat >50-own.yaml\n", "/etc/netplan"},
		"its directory in a variable":           {"#!/bin/sh\nD=/etc/netplan\ncat >$D/50-own.yaml\n", "/etc/netplan"},
		"below a variable":                      {"#!/bin/sh\ncat >$TARGET/etc/netplan/50-own.yaml\n", "/etc/netplan"},
		"by a template":                         {file("/etc/netplan/50-{{ v1.local_hostname }}.yaml", "network: {version: 2}"), "/etc/netplan"},
		"netplan of another root":               {file("/srv/root/etc/netplan/50-own.yaml", "network: {version: 2}"), ""},
		"a comment":                             {cloudConfig + "# see /etc/netplan/50-own.yaml\npackages: [nginx] # not /etc/network/interfaces; nor /etc/netplan\n", ""},
		"networkd":                              {file("/etc/systemd/network/10-eno1.network", "[Network]"), "/etc/systemd/network"},
		"networkd's own configuration":          {file("/etc/systemd/networkd.conf.d/10-cni.conf", "[Network]\nManageForeignRoutes=no"), ""},
		"the name of an interface":              {file("/etc/systemd/network/10-eno1.link", "[Link]\nName=eno1"), ""},
		"ifupdown":                              {file("/etc/network/interfaces", "auto eno1"), "/etc/network/interfaces"},
		"ifupdown's directory":                  {file("/etc/network/interfaces.d/eno1", "auto eno1"), "/etc/network/interfaces.d"},
		"a hook of ifupdown":                    {file("/etc/network/if-up.d/route", "#!/bin/sh"), ""},
		"NetworkManager":                        {file("/etc/NetworkManager/system-connections/eno1.nmconnection", "[connection]"), "/etc/NetworkManager/system-connections"},
		"NetworkManager's own configuration":    {file("/etc/NetworkManager/conf.d/dns.conf", "[main]"), ""},
		"of Red Hat":                            {file("/etc/sysconfig/network-scripts/ifcfg-eno1", "DEVICE=eno1"), "/etc/sysconfig/network-scripts/ifcfg-"},
		"of SUSE":                               {file("/etc/sysconfig/network/ifcfg-eno1", "BOOTPROTO=static"), "/etc/sysconfig/network/ifcfg-"},
		"no more than Red Hat's defaults":       {file("/etc/sysconfig/network", "NOZEROCONF=yes"), ""},
		// It is there after the network was made.
		"cloud-init's configuration":   {file("/etc/cloud/cloud.cfg.d/99-own.cfg", "network:\n  version: 2"), ""},
		"that, and the key at the top": {file("/etc/cloud/cloud.cfg.d/99-locale.cfg", "locale: C.UTF-8") + "network:\n  version: 2\n", ""},
	} {
		request := &agentv1.InstallRequest{
			FirstBootData: []byte(test.userData), Image: &agentv1.Image{FirstBootForm: agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD},
		}
		warning := ""
		if test.left != "" {
			warning = "the installed system is not told the machine's network, which is left to its first-boot data: that names " + test.left
		}
		l := layout{request: request}
		err := l.nameHost(networks["static"].network)
		if (err == nil) != (warning == "") || err != nil && err.Error() != warning || (len(l.networkConfig) > 0) != (test.left == "") {
			t.Errorf("%s: a network-config of %d bytes, warning %v", name, len(l.networkConfig), err)
		}
		l = layout{request: request}
		if err := l.nameHost(networks["DHCP"].network); err != nil || len(l.networkConfig) > 0 {
			t.Errorf("%s: nothing is left out of a network by DHCP: %v", name, err)
		}
	}
}
