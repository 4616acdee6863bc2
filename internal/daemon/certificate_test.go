package daemon_test

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
)

// TestTheCertificateIsForWhatAgentsAreTold: agents verify the control plane by the host that they
// are told to call, which need not be that of its own endpoint.
func TestTheCertificateIsForWhatAgentsAreTold(t *testing.T) {
	t.Parallel()
	c := settings(t)
	c.AgentAPI.Endpoint, c.Initializer.Endpoint = "cp1.example:0", "vip.example:8443"
	restart(t, c)
	content, err := os.ReadFile(filepath.Join(c.Dir, "agent-server.pem"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest := pem.Decode(content) // the key
	block, _ := pem.Decode(rest)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"cp1.example", "vip.example"} {
		if err := leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
}
