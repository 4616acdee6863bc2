package command

import (
	"fmt"
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
most of what they had, and even if other nodes have other manifests. The leader must have these manifests itself, and the command says
so where it has others; status shows each node's digest, and plan shows what would be deleted. The word holds for that digest alone, takes
the place of any other, and ends by itself.`,
		Example: `  ironherd-reconciler prune approve 9f86d081884c7d65 --reason "the old ingress is gone for good"`,
		Args:    cobra.ExactArgs(1),
	}
	length := cmd.Flags().Duration("for", time.Hour, "how long the word holds; at most "+reconciler.MaxApproval.String())
	reason := cmd.Flags().String("reason", "", "why, for those who look at status; must be given")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.withEtcd(cmd.Context(), func(c config, client *clientv3.Client, logger *slog.Logger) error {
			approval := reconciler.Approval{Digest: args[0], By: c.node, Reason: *reason}
			o, err := reconciler.Look(cmd.Context(), client, c.layout, c.build, logger)
			if err != nil {
				return unreachable(err)
			}
			own, err := resources.Source(cmd.Context(), c.options())
			has := err == nil && own.Digest == approval.Digest
			if !has && !somebodyHas(o, approval.Digest) {
				return fleet.Errorf(fleet.KindNotFound, "no node has the manifests %s: status shows which they have", approval.Digest)
			}
			if err := reconciler.Approve(cmd.Context(), client, c.layout, approval, *length); err != nil {
				return unreachable(err)
			}
			a.note("the manifests %s are approved for %s", approval.Digest, *length)
			if before := o.Approval; before != nil && before.Digest != approval.Digest {
				a.note("the manifests %s, which %s had approved until %s, are no longer approved: there is one approval at a time",
					clean(before.Digest), clean(before.By), before.Until.Format(time.RFC3339))
			}
			if why := unheeded(o, approval.Digest); why != "" && (!has || !own.Whole() || o.Leader.Name != c.node) {
				a.note("%s", clean(why))
			}
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

// somebodyHas reports whether the record of a node has the manifests with a digest. A node has them
// before its record says so, which the service writes once per full pass.
func somebodyHas(o reconciler.Overview, digest string) bool {
	return slices.ContainsFunc(o.Nodes, func(n reconciler.NodeOverview) bool { return n.Source != nil && n.Source.Digest == digest })
}

// unheeded says why the leader deletes nothing by the approval of manifests, as far as its record
// tells; empty: it has them, or nobody leads.
func unheeded(o reconciler.Overview, digest string) string {
	if o.Leader == nil {
		return ""
	}
	var source *node.Source
	for _, n := range o.Nodes {
		if n.Name == o.Leader.Name {
			source = n.Source
		}
	}
	switch {
	case source == nil:
		return fmt.Sprintf("the leader %s has not said which manifests it has, and deletes nothing by this approval unless it has these", o.Leader.Name)
	case !source.Whole():
		return fmt.Sprintf("the leader %s cannot read all of its manifests, and deletes nothing by this approval before it can and has these", o.Leader.Name)
	case source.Digest != digest:
		return fmt.Sprintf("by its record the leader %s has other manifests (%s), and deletes nothing by this approval while it leads with them", o.Leader.Name, source.Digest)
	}
	return ""
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
