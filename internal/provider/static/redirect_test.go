package static

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// TestAnHTTPSListComesOverHTTPS, wherever it is redirected to, and its URL is told to nobody else.
func TestAnHTTPSListComesOverHTTPS(t *testing.T) {
	t.Parallel()
	serve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if from := r.Referer(); from != "" {
			t.Errorf("the host that it redirects to is told %q", from)
		}
		_, _ = w.Write([]byte(fiveHosts))
	})
	plain, secure := httptest.NewServer(serve), httptest.NewTLSServer(serve)
	defer plain.Close()
	defer secure.Close()
	loop := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path, http.StatusFound)
	}))
	defer loop.Close()
	roots := x509.NewCertPool()
	for name, test := range map[string]struct {
		tls  bool
		to   string
		says string
	}{
		"https to http":            {true, plain.URL + "/hosts?key=hidden", "it redirects to " + plain.URL + ", and is followed to https alone"},
		"https to https":           {true, secure.URL, ""},
		"http here to https":       {false, secure.URL, ""},
		"http here to http here":   {false, plain.URL, ""},
		"http here to http beyond": {false, "http://192.0.2.1/hosts", "it redirects to http://192.0.2.1, and is followed to https alone"},
		"to something else":        {false, "ftp://192.0.2.1/hosts", "it redirects to ftp://192.0.2.1"},
		"in a circle":              {true, loop.URL, "more than 10 times"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.RedirectHandler(test.to, http.StatusFound))
			start := server.Start
			if test.tls {
				start = server.StartTLS
			}
			start()
			defer server.Close()
			for _, s := range []*httptest.Server{server, secure, loop} {
				if s.Certificate() != nil {
					roots.AddCert(s.Certificate())
				}
			}
			client := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
			defer client.CloseIdleConnections()
			p, err := New(Config{URL: server.URL + "/list?key=hidden", InFlight: 1}, provider.Options{HTTP: client})
			if err != nil {
				t.Fatal(err)
			}
			p.remote.pause = 0
			entries, err := p.List(t.Context())
			if test.says == "" {
				if err != nil || len(entries) != 5 {
					t.Errorf("%d hosts, %v", len(entries), err)
				}
				return
			}
			if fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "hidden") || entries != nil {
				t.Errorf("%d hosts, %v (%s)", len(entries), err, fleet.KindOf(err))
			}
		})
	}
}
