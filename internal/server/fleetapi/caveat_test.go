package fleetapi_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/cli"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

// TestWhoeverAwaitsAUnitOfCloudInitIsTold: images of distributions have no unit that calls, and a
// fleet that runs would be restarted for that. One with a unit of its own is installed all the
// same.
func TestWhoeverAwaitsAUnitOfCloudInitIsTold(t *testing.T) {
	t.Parallel()
	const caveat = "a unit of it calls (ironherd-firstboot), and an image with cloud-init may have none"
	for name, test := range map[string]struct {
		form   agentv1.FirstBootForm
		seenUp string
		told   bool
	}{
		"cloud-init":                   {agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD, "unit", true},
		"cloud-init with a network":    {agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD_USER_DATA, "", true},
		"cloud-init, asked by SSH":     {agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD, "ssh", false},
		"an image that reads the area": {agentv1.FirstBootForm_FIRST_BOOT_FORM_UNSPECIFIED, "unit", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newFixture(t)
			o.machines(1)
			request := wanted("host-0")
			request.Image.FirstBootForm, request.SeenUp = test.form, test.seenUp
			client := o.client(token.Operator)
			a, err := client.InstallMachine(t.Context(), request)
			o.must(err)
			p, err := client.CreatePlan(t.Context(), &fleetv1.CreatePlanRequest{
				Verb: string(fleet.VerbReinstall), Machines: []string{"host-0"}, Reason: "r", Install: request, AllowRefused: true,
			})
			o.must(err)
			for way, said := range map[string]string{"an install": a.GetCaveat(), "a plan": p.GetCaveat()} {
				if strings.Contains(said, caveat) != test.told || strings.Contains(said, "with --seen-up ssh the") != test.told {
					t.Errorf("%s says %q", way, said)
				}
			}
		})
	}
}

// TestTheCommandLineTellsCaveats: once, however many machines are named.
func TestTheCommandLineTellsCaveats(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	o.machines(2)
	dir := t.TempDir()
	tokenFile, firstBoot := filepath.Join(dir, "token"), filepath.Join(dir, "user-data")
	o.must(os.WriteFile(tokenFile, []byte(o.tokens[token.Operator]), 0o600))
	o.must(os.WriteFile(firstBoot, []byte("#cloud-config\n"), 0o600))
	const mind = "Mind that the installed system counts as up when a unit of it calls"
	for _, more := range [][]string{nil, {"--reinstall", "--reason", "r", "--yes"}} {
		var stdout, stderr bytes.Buffer
		cli.Main(t.Context(), append([]string{
			"machine", "install", "host-0", "host-1", "--image", "https://images.example/a", "--digest", "sha256:" + strings.Repeat("a", 64), "--nocloud",
			"--first-boot", firstBoot, "--server", o.url, "--token-file", tokenFile,
		}, more...), cli.Env{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr, Version: "v1"})
		if strings.Count(stderr.String(), mind) != 1 {
			t.Errorf("%q: %q, %q", more, stdout.String(), stderr.String())
		}
	}
}
