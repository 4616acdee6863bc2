package agentapi_test

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// TestNoInstalledSystemIsToldToCallItself: the configuration of a fleet gave way to the package's
// sample, which has no provider, so that nothing speaks against its endpoint.
func TestNoInstalledSystemIsToldToCallItself(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		endpoint, at string
		handsOut     bool
	}{
		"elsewhere":                       {"localhost:8443", "192.0.2.1", false},
		"elsewhere, by an address":        {"[::1]:8443", "2001:db8::1", false},
		"this host":                       {"localhost:8443", "127.0.0.3", true},
		"elsewhere, told what it reaches": {"control.example:8443", "192.0.2.1", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, nil)
			h.machinesAt = netip.MustParseAddr(c.at)
			m := h.machines(1, image())[0]
			h.must(h.stop())
			log := &lines{}
			config := h.config
			config.Endpoint = c.endpoint
			serve := func() {
				h.api = agentapi.New(h.db, config, agentapi.Options{Logger: slog.New(slog.NewTextHandler(log, nil)), Certificates: h.certificates})
				h.start()
			}
			serve()
			order := h.heartbeat(h.dial(m.key), m.withReport()).GetInstallRequest()
			if r := h.record(m); (order != nil) != c.handsOut || (r.InstallAttempt != nil) != c.handsOut {
				t.Errorf("handed out %v, recorded %+v", order, r.InstallAttempt)
			}
			if n := log.with("no install is handed out to machines elsewhere"); (n == 0) != c.handsOut || n > 1 {
				t.Errorf("%d lines of the log", n)
			}
			if c.handsOut {
				return
			}
			h.must(h.stop())
			config.Endpoint = "control.example:8443"
			serve()
			if order := h.heartbeat(h.dial(m.key), m.beat()).GetInstallRequest(); order.GetBootToken().GetEndpoint() != config.Endpoint {
				t.Errorf("with an endpoint that it reaches: %v", order)
			}
		})
	}
}
