package initializer_test

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironherd/ironherd/internal/shepherd"
)

// TestNoMachineGetsAPrivateKey: the file of the authority may hold its key, too.
func TestNoMachineGetsAPrivateKey(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("never to be given away")})
	b := newBench(t)
	b.config.EndpointCA = filepath.Join(t.TempDir(), "agent-ca.pem")
	check(t, os.WriteFile(b.config.EndpointCA, append(key, certificate...), 0o600))
	if outcome, ok := b.start().(shepherd.Finish); !ok {
		t.Fatalf("got %T %+v", outcome, outcome)
	}
	if got := string(b.inits[0].GetCaCertificate()); got != string(certificate) {
		t.Errorf("the agent was given\n%s", got)
	}
}
