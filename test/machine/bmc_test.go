package machine

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// What the BMC of a virtual machine says of itself.
const (
	bmcAddress = "192.0.2.77"
	bmcMAC     = "52:54:00:12:34:77"
)

// startBMC starts OpenIPMI's simulator of a BMC, which ends with the test, and returns its port for
// a virtual machine. Its command file and its configuration are those of ipmi_sim_cmd(5) and
// ipmi_lan(5).
func startBMC(t *testing.T) (port int) {
	t.Helper()
	dir, port := t.TempDir(), freePort(t)
	addresses := filepath.Join(dir, "addresses")
	for path, text := range map[string]string{
		filepath.Join(dir, "commands"): "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02\nmc_enable 0x20\n",
		filepath.Join(dir, "lan.conf"): fmt.Sprintf("name \"machine\"\nset_working_mc 0x20\nstartlan 1\naddr 127.0.0.1 %d\n"+
			"lan_config_program %q\nendlan\nserial 15 127.0.0.1 %d codec VM\n", freePort(t), addresses, port),
		// It is asked by "get" and names of parameters, or told by "set".
		addresses: "#!/bin/sh\nfor name; do case $name in\nip_addr) echo $name:" + bmcAddress + ";;\nmac_addr) echo $name:" + bmcMAC +
			";;\nip_addr_src) echo $name:static;;\nsubnet_mask) echo $name:255.255.255.0;;\n*_ip_addr) echo $name:0.0.0.0;;\n" +
			"*_mac_addr) echo $name:00:00:00:00:00:00;;\nesac; done\n",
	} {
		check(t, os.WriteFile(path, []byte(text), 0o700)) //nolint:gosec // one is executed
	}
	var said bytes.Buffer
	bmc := exec.Command("ipmi_sim", "-n", "-p", "-c", filepath.Join(dir, "lan.conf"), "-f", filepath.Join(dir, "commands"), "-s", dir)
	bmc.Stdout, bmc.Stderr, bmc.SysProcAttr = &said, &said, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := bmc.Start(); err != nil {
		t.Fatalf("%v: it plays the BMC of a machine (Debian: apt-get install openipmi)", err)
	}
	t.Cleanup(func() {
		_ = bmc.Process.Kill()
		_ = bmc.Wait()
		if t.Failed() {
			t.Logf("the BMC said: %s", &said)
		}
	})
	return port
}

// checkBMC compares what the agent in memory has learned of the BMC, through the kernel's driver,
// with what the BMC was told.
func checkBMC(t *testing.T, bmc *agentv1.Bmc) {
	t.Helper()
	if bmc.GetAddress() != bmcAddress || bmc.GetMac() != bmcMAC || bmc.GetIpmiVersion() != "2.0" || bmc.GetFirmwareVersion() != "9.8" {
		t.Errorf("the BMC: %v", bmc)
	}
	t.Logf("BMC: %v", bmc)
}
