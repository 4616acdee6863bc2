package command

import (
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/reconciler"
)

func (a *app) pauseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause SCOPE",
		Short: "Have the reconciler leave something alone for a while",
		Long: `Have the reconciler leave something alone for a while: all, a kind (ConfigMap, Deployment.apps), or one object. It is neither created,
changed nor deleted, and drift in it is not repaired. status lists what is paused. The pause ends by itself.

While something is paused that API servers need, and that is not as this release wants it, no new status is announced.`,
		Example: `  ironherd-reconciler pause all --for 30m --reason "restoring a backup"
  ironherd-reconciler pause "ConfigMap default/settings" --reason "an incident: edited by hand"`,
		Args: cobra.RangeArgs(1, 2),
	}
	length := cmd.Flags().Duration("for", time.Hour, "how long; at most "+reconciler.MaxPause.String())
	reason := cmd.Flags().String("reason", "", "why, for those who look at status; must be given")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.withEtcd(cmd.Context(), func(c config, client *clientv3.Client, _ *slog.Logger) error {
			p := reconciler.Pause{Scope: strings.Join(args, " "), By: c.node, Reason: *reason}
			if err := reconciler.SetPause(cmd.Context(), client, c.layout, p, *length); err != nil {
				return unreachable(err)
			}
			a.note("%s is paused for %s", p.Scope, *length)
			return nil
		})
	}
	return cmd
}

func (a *app) resumeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "resume SCOPE",
		Short:   "End a pause",
		Example: `  ironherd-reconciler resume all`,
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			scope := strings.Join(args, " ")
			return a.withEtcd(cmd.Context(), func(c config, client *clientv3.Client, _ *slog.Logger) error {
				if err := reconciler.EndPause(cmd.Context(), client, c.layout, scope); err != nil {
					return unreachable(err)
				}
				a.note("%s is no longer paused", scope)
				return nil
			})
		},
	}
}
