package recoverer_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestReinstallIsANewInstall: after a reinstall the same image is wanted under another generation.
func TestReinstallIsANewInstall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := newHerd(t, 3, func(p *fleet.Policy) { p.RecoveryReinstalls = 1 })
		id := herd.Machines()[0]
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		herd.Change(id, func(h *shepherdtest.Host) { h.Corrupt, h.Agent = true, false })
		image := fleet.Image{
			URL: "http://127.0.0.1/image", Digest: "sha256:" + strings.Repeat("0", 64), Compression: fleet.CompressionNone,
		}
		_, err := herd.DB.RequestInstall(t.Context(), "ada", id, fleet.InstallRequest{Image: image, FirstBootData: []byte("data")}, false)
		check(t, err)
		time.Sleep(90 * time.Minute)
		r := herd.Record(id)
		if r.InstallRequest.Generation != 2 || r.InstallRequest.Actor != "ada" || r.InstallRequest.Image != image {
			t.Errorf("wanted is %+v", r.InstallRequest)
		}
		if got := levers(herd, id); got != "reboot reboot power-cycle reinstall" {
			t.Errorf("pulled %q", got)
		}
	})
}

// TestTheHostKeyAfterAReinstall is the one that the machine was created with. One that was created
// without a key makes its own, whatever new machines get by now.
func TestTheHostKeyAfterAReinstall(t *testing.T) {
	t.Parallel()
	const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBSbaqp5NGX0RWLDfBUMYvpV9WQnYj1tXnN1jx4vqJwe"
	for name, injected := range map[string]string{"with a key": key, "without a key": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := newHerd(t, 3, func(p *fleet.Policy) { p.RecoveryReinstalls = 1 })
				id := herd.Machines()[0]
				herd.Fake.Inject = injected == "" // what counts is what it was created with
				herd.Fake.Change(herd.Record(id).ProviderID, func(e *provider.Entry) bool {
					e.InjectedKey, e.Tokens = injected, []fleet.Token{fleet.NewToken()}
					return true
				})
				defer herd.Start(handler)()
				time.Sleep(5 * time.Minute)
				herd.Change(id, func(h *shepherdtest.Host) { h.Corrupt, h.Agent = true, false })
				time.Sleep(90 * time.Minute)
				if got := levers(herd, id); got != "reboot reboot power-cycle reinstall" {
					t.Errorf("pulled %q", got)
				}
				known, err := herd.DB.HostKeys(t.Context(), id)
				check(t, err)
				if want := map[bool]fleet.HostKeySource{true: fleet.HostKeyInjected}[injected != ""]; known.Source != want ||
					injected != "" && !slices.Equal(known.Known, []string{key}) {
					t.Errorf("the machine is known by %+v", known)
				}
			})
		})
	}
}
