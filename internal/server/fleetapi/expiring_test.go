package fleetapi

import (
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/server"
)

// TestACertificateExpiresOrHasExpired: what a certificate leads to may have ended, and some clients
// accept it still.
func TestACertificateExpiresOrHasExpired(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	for want, end := range map[string]server.End{
		"the certificate expires in 10 days (2026-12-02 10:00:00 UTC), and nobody has renewed it":                                       {At: now.Add(240 * time.Hour)},
		`the authority "CN=a", which the certificate leads to, expires in 3 hours (2026-11-22 13:00:00 UTC), and nobody has renewed it`: {At: now.Add(3 * time.Hour), Of: `the authority "CN=a"`},
		`the authority "CN=a", which the certificate leads to, has expired at 2026-11-22 10:00:00 UTC`:                                  {At: now, Of: `the authority "CN=a"`},
		"the certificate has expired at 2026-11-22 05:00:00 UTC":                                                                        {At: now.Add(-5 * time.Hour)},
	} {
		if got := expiring(end, "the certificate", now); got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
}
