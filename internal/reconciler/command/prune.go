package command

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/shell"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/node"
)

func (a *app) pruneApproveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "approve DIGEST",
		Short: "Say that what the manifests say is a decision",
		Long: `Say that the manifests with this digest are what is wanted, so that the leader deletes what is no longer in them: even if that is
most of what they had, and even if other nodes have other manifests. The leader must have these manifests itself; status shows each
node's digest, and plan shows what would be deleted. The word holds for that digest alone, and ends by itself.`,
		Example: `  ironherd-reconciler prune approve 9f86d081884c7d65 --reason "the old ingress is gone for good"`,
		Args:    cobra.ExactArgs(1),
	}
	length := cmd.Flags().Duration("for", time.Hour, "how long the word holds; at most "+reconciler.MaxApproval.String())
	reason := cmd.Flags().String("reason", "", "why, for those who look at status; must be given")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.withEtcd(cmd.Context(), func(c config, client *clientv3.Client, logger *slog.Logger) error {
			approval := reconciler.Approval{Digest: args[0], By: c.node, Reason: *reason}
			if err := a.somebodyHas(cmd.Context(), client, c, logger, args[0]); err != nil {
				return err
			}
			if err := reconciler.Approve(cmd.Context(), client, c.layout, approval, *length); err != nil {
				return unreachable(err)
			}
			a.note("the manifests %s are approved for %s", args[0], *length)
			return nil
		})
	}
	return cmd
}

// approval is the command that approves manifests, with the flags that this command was called
// with: without them it might ask another etcd, or know of no such manifests.
func (a *app) approval(digest string) string {
	command := "ironherd-reconciler prune approve " + digest
	if a.file != "" {
		command += " --config " + shell.Word(a.file)
	}
	for _, given := range a.flags {
		command += " --" + setting{key: given.key}.flag() + " " + shell.Word(given.value)
	}
	return command + " --reason WHY"
}

// somebodyHas returns KindNotFound unless a node has the manifests with a digest. This node has
// them before its record says so, which the service writes once per full pass.
func (a *app) somebodyHas(ctx context.Context, client *clientv3.Client, c config, logger *slog.Logger, digest string) error {
	set, err := node.NewRegistry(client, c.layout, logger).List(ctx)
	if err != nil {
		return unreachable(err)
	}
	if own, err := resources.Source(ctx, c.options()); err == nil && own.Digest == digest {
		return nil
	}
	if !slices.ContainsFunc(set.Nodes, func(n node.Node) bool { return n.Source != nil && n.Source.Digest == digest }) {
		return fleet.Errorf(fleet.KindNotFound, "no node has the manifests %s: status shows which they have", digest)
	}
	return nil
}

func (a *app) pruneWithdrawCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "withdraw",
		Short: "Take the approval of manifests back",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withEtcd(cmd.Context(), func(c config, client *clientv3.Client, _ *slog.Logger) error {
				if err := reconciler.Withdraw(cmd.Context(), client, c.layout); err != nil {
					return unreachable(err)
				}
				a.note("no manifests are approved any more")
				return nil
			})
		},
	}
}
