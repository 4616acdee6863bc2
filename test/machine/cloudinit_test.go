package machine

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/image"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/vm"
)

// A system with cloud-init and nothing of ours is seen up by the host key that its install brought,
// which cloud-init takes from the vendor-data of a NoCloud seed. What the user wants is done
// besides.
func TestCloudInitBringsTheHostKey(t *testing.T) {
	onDemand(t)
	ctx := bounded(t, limit)
	o := cloudImage(t, ctx)
	p, m, _ := installedFromQuick(t, ctx, o, vm.BIOS, func(c *config.Config, p *config.Provider) {
		data := filepath.Join(filepath.Dir(c.Dir), "user-data")
		check(t, os.WriteFile(data, []byte("#cloud-config\nwrite_files:\n- path: /root/wanted\n  content: by the user\n"), 0o600))
		c.Images = []config.Image{{
			Name: "debian", URL: o.url(), Digest: o.digest, Compression: fleet.CompressionZstd, Size: o.size, FirstBoot: fleet.FirstBootNoCloud,
		}}
		p.Install = &config.Install{Image: "debian", FirstBootDataFile: data, SeenUp: "ssh", RootDisk: fleet.DiskSelector{Erase: true}}
		c.Policy.ProbeInterval, c.Policy.InstallTimeout, c.Policy.BootTimeout = 5*time.Second, limit, limit
		c.Prober.ConnectTimeout, c.Prober.Timeout = 10*time.Second, 30*time.Second
	})
	machine, err := p.machine(ctx)
	check(t, err)
	known, err := p.client.GetHostKeys(ctx, &fleetv1.GetHostKeysRequest{Machine: machine.GetMachine().GetId()})
	check(t, err)
	host := login(t, ctx, m)
	if got := shell(t, ctx, host, "cat /root/wanted"); got != "by the user" {
		t.Errorf("the user's file has %q", got)
	}
	shown := shell(t, ctx, host, "cat /etc/ssh/ssh_host_ed25519_key.pub")
	keys, _ := remote.ParseHostKeys([]string{shown})
	if len(keys) != 1 || len(known.GetKnown()) != 1 || known.GetKnown()[0].GetKey() != keys[0] {
		t.Errorf("the system has the host key %s; known is %v", shown, known)
	}
}

// cloudImage builds an image with cloud-init, and without an agent, and serves it.
func cloudImage(t *testing.T, ctx context.Context) offer {
	t.Helper()
	recipe, err := newRecipe(ctx)
	check(t, err)
	public, err := os.ReadFile(built.base.key + ".pub")
	check(t, err)
	sources, apt, err := recipe.write(t.TempDir())
	check(t, err)
	raw := filepath.Join(shortDir(t), "cloud.raw")
	_, err = image.Build(ctx, image.Options{
		Output: raw, Suite: recipe.suite, Packages: []string{"cloud-init"}, AuthorizedKeys: public, Sources: sources, AptConfig: apt,
		Log: func(line string) { t.Log(line) },
	})
	check(t, err)
	o, end, err := serve(ctx, raw)
	check(t, err)
	t.Cleanup(func() { _ = end() })
	return o
}
