package sim_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/packethost/packngo"

	"github.com/ironherd/ironherd/internal/sim"
)

// trusting returns a client of the world's API that trusts nothing but the world's authority.
func trusting(t *testing.T, w *sim.World) *packngo.Client {
	t.Helper()
	certificate, err := os.ReadFile(w.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(certificate) {
		t.Fatalf("no certificate in %q", certificate)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	client, err := packngo.NewClientWithBaseURL("test", w.Token(), &http.Client{Transport: transport}, w.URL()+"/")
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestTheAPISpeaksTLS(t *testing.T) {
	t.Parallel()
	config := sim.Config{
		Dir: t.TempDir(), Machines: 1, TLS: true, Agent: (&agents{}).run, Images: []sim.ImageSpec{{Name: "small", Size: 4 << 20}},
	}
	var authority, url, image string
	for range 2 { // a restart keeps the authority and all addresses
		w, err := sim.Open(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- w.Run(t.Context()) }()
		if !strings.HasPrefix(w.URL(), "https://127.0.0.1:") {
			t.Errorf("the API is at %s", w.URL())
		}
		if _, _, err := trusting(t, w).Projects.Get(w.ProjectID(), nil); err != nil {
			t.Error(err)
		}
		for _, plain := range []string{w.StatusURL(), w.Images()[0].URL} {
			if code := statusAt(t, plain); code != http.StatusOK {
				t.Errorf("%s: %d", plain, code)
			}
		}
		if code := statusAt(t, strings.Replace(w.URL(), "https:", "http:", 1)+"/user"); code != http.StatusBadRequest {
			t.Errorf("the API without TLS: %d", code)
		}
		if code := statusAt(t, strings.Replace(w.StatusURL(), "/sim/v1/status", "/metal/v1/user", 1)); code != http.StatusNotFound {
			t.Errorf("the API beside the images: %d", code)
		}
		certificate, err := os.ReadFile(w.CAFile())
		if err != nil || authority != "" && (string(certificate) != authority || w.URL() != url || w.Images()[0].URL != image) {
			t.Errorf("after a restart, %s and %s have become %s and %s, or the authority is another: %v", url, image, w.URL(), w.Images()[0].URL, err)
		}
		authority, url, image = string(certificate), w.URL(), w.Images()[0].URL
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func statusAt(t *testing.T, url string) int {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// TestWorldsOfOneSeed have the same machines, and IDs of their own at the provider.
func TestWorldsOfOneSeed(t *testing.T) {
	t.Parallel()
	var ids, models [2]string
	for i := range 2 {
		r := newRig(t, func(c *sim.Config) { c.Machines = 1 })
		res, _, err := r.client.HardwareReservations.List(r.world.ProjectID(), nil)
		if err != nil || len(res) != 1 {
			t.Fatal(res, err)
		}
		ids[i], models[i] = r.world.ProjectID()+res[0].ID, res[0].Plan.Slug
	}
	if ids[0] == ids[1] || models[0] != models[1] {
		t.Errorf("IDs %q, models %q", ids, models)
	}
}

func TestAFaultReordersLists(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *sim.Config) { c.Machines, c.Faults = 40, "list-order=#2" })
	list := func() (ids []string) {
		all, _, err := r.client.HardwareReservations.List(r.world.ProjectID(), &packngo.ListOptions{PerPage: 40})
		if err != nil {
			t.Fatal(err)
		}
		for _, res := range all {
			ids = append(ids, res.ID)
		}
		return ids
	}
	first, second, third := strings.Join(list(), " "), strings.Join(list(), " "), strings.Join(list(), " ")
	if first == second || first != third {
		t.Errorf("the second of three lists should be the only one in another order:\n%s\n%s\n%s", first, second, third)
	}
}
