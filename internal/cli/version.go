package cli

import (
	"cmp"
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

// versions is what version prints.
type versions struct {
	Client       clientVersion        `yaml:"client"`
	ControlPlane *controlPlaneVersion `yaml:"controlPlane,omitempty"`
}

type clientVersion struct {
	Version   string `yaml:"version"`
	GoVersion string `yaml:"goVersion"`
	Platform  string `yaml:"platform"`
}

type controlPlaneVersion struct {
	Version   string `yaml:"version"`
	GoVersion string `yaml:"goVersion"`
	Database  string `yaml:"database"`
	Schema    int64  `yaml:"schema"`
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program, and of the control plane when one is named",
		Long: `Version asks the control plane that --server, --config, IRONHERD_SERVER or IRONHERD_CONFIG names. Its own version it prints also where
that does not answer.`,
		Example: `  ironherd version
  ironherd version --server unix:///var/lib/ironherd/ironherd.sock -o json`,
		Args: exactly,
	}
	timeout, output := timeoutFlag(cmd, defaultTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		v := versions{Client: clientVersion{a.env.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}}
		var failed error
		if a.namesServer() {
			failed = a.ask(cmd, *timeout, func(ctx context.Context, client fleetClient) error {
				response, err := client.GetVersion(ctx, &fleetv1.GetVersionRequest{})
				if err != nil {
					return err
				}
				v.ControlPlane = &controlPlaneVersion{
					response.GetVersion(), response.GetGoVersion(), response.GetDatabase(), response.GetSchema(),
				}
				return nil
			})
		}
		printed := a.print(*output, v, func(w *screen) {
			w.line("ironherd %s (%s, %s)", v.Client.Version, v.Client.GoVersion, v.Client.Platform)
			if c := v.ControlPlane; c != nil {
				w.line("control plane %s (%s, database %s, schema %s)", c.Version, c.GoVersion, c.Database, fmt.Sprint(c.Schema))
			}
		})
		return cmp.Or(failed, printed)
	}
	return cmd
}
