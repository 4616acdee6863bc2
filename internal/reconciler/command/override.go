package command

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/node"
)

func (a *app) pauseCommand() *cobra.Command {
	return a.overrideCommand(reconciler.Pause, &cobra.Command{
		Use:   "pause SCOPE",
		Short: "Have the reconciler leave something alone for a while",
		Long: `Have the reconciler leave something alone for a while: all, a kind (ConfigMap, Deployment.apps), or one object. It is neither created,
changed nor deleted, and drift in it is not repaired. status lists what is paused. The pause ends by itself. It takes the
place of an earlier one of the same scope, and says so.

What the reconciler does not keep cannot be paused: neither the release, nor the manifests of this node, nor the inventory in the API server
that the kubeconfig names has it. If one of these cannot be read, or another node has other manifests, the pause is stored, and said to be
perhaps of nothing. Upper and lower case of a kind do not matter.

A pass that is under way is broken off when the leader sees the pause; a request that it has sent by then may still be carried out.

While something is paused that API servers need, and that is not as this release wants it, no new status is announced.`,
		Example: `  ironherd-reconciler pause all --for 30m --reason "restoring a backup"
  ironherd-reconciler pause "ConfigMap default/settings" --reason "an incident: edited by hand"`,
	}, "%s is paused for %s; a request that a pass has sent by now may still be carried out")
}

func (a *app) forceCommand() *cobra.Command {
	return a.overrideCommand(reconciler.Force, &cobra.Command{
		Use:   "force SCOPE",
		Short: "Have the reconciler take fields from other managers for a while",
		Long: `Have the reconciler take the fields that it wants from other managers for a while, of all, a kind (ConfigMap, Deployment.apps), or one
object: what force_conflicts does for all and for ever. A field that another manager declares by server-side apply, or that was there before
the reconciler, is else a failure that names the manager. plan shows what would be taken; status lists what is forced.

It ends by itself, and what was taken stays taken. A manager that goes on declaring the field by force gets it back, and the reconciler takes
it again ever less often: pause the object, or have that manager give the field up. What is paused is not forced.

As with pause, what the reconciler does not keep is refused, and a pass that is under way is broken off and begins anew.`,
		Example: `  ironherd-reconciler force "ClusterRole ironherd:owner" --reason "edited by kubectl apply --server-side in an incident"
  ironherd-reconciler force Deployment.apps --for 10m --reason "moved here from a GitOps tool"`,
	}, "%s is forced for %s: fields of other managers that the manifests want are taken")
}

// overrideCommand completes a command that stores an override. The format says what that does; it
// is given the scope and for how long.
func (a *app) overrideCommand(effect reconciler.Effect, cmd *cobra.Command, format string) *cobra.Command {
	cmd.Args = cobra.RangeArgs(1, 2)
	length := cmd.Flags().Duration("for", time.Hour, "how long; at most "+reconciler.MaxOverride.String())
	reason := cmd.Flags().String("reason", "", "why, for those who look at status; must be given")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.withEtcd(cmd.Context(), func(c config, client *clientv3.Client, logger *slog.Logger) error {
			o := reconciler.Override{Effect: effect, Scope: strings.Join(args, " "), By: c.node, Reason: *reason}
			var err error
			if o.Scope, err = a.keptScope(cmd.Context(), client, c, logger, o); err != nil {
				return err
			}
			before, err := reconciler.SetOverride(cmd.Context(), client, c.layout, o, *length)
			if err != nil {
				return unreachable(err)
			}
			a.note(format, o.Scope, *length)
			if before != nil {
				a.note("it takes the place of the %s until %s, by %s: %s", effect, before.Until.Format(time.RFC3339), clean(before.By), clean(before.Reason))
			}
			return nil
		})
	}
	return cmd
}

func (a *app) resumeCommand() *cobra.Command {
	return a.endCommand(reconciler.Pause,
		&cobra.Command{Use: "resume SCOPE", Short: "End a pause", Example: `  ironherd-reconciler resume all`})
}

func (a *app) unforceCommand() *cobra.Command {
	return a.endCommand(reconciler.Force,
		&cobra.Command{Use: "unforce SCOPE", Short: "End a force", Example: `  ironherd-reconciler unforce Deployment.apps`})
}

// endCommand completes a command that ends an override. It says which other overrides have that
// effect on the same objects all the same.
func (a *app) endCommand(effect reconciler.Effect, cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.RangeArgs(1, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		scope := strings.Join(args, " ")
		return a.withEtcd(cmd.Context(), func(c config, client *clientv3.Client, _ *slog.Logger) error {
			rest, err := reconciler.EndOverride(cmd.Context(), client, c.layout, effect, scope)
			others := rest.Whole
			if len(others) == 0 {
				others = rest.Parts
			}
			switch {
			case fleet.KindOf(err) == fleet.KindNotFound && len(others) > 0:
				return fleet.Errorf(fleet.KindNotFound, "%w: %s", err, listed(others))
			case err != nil:
				return unreachable(err)
			case len(rest.Whole) > 0:
				a.note("%s is still %s, by another %s: %s", scope, effect.Past(), effect, listed(others))
			case len(rest.Parts) > 0:
				a.note("%s is no longer %s, except for: %s", scope, effect.Past(), listed(others))
			default:
				a.note("%s is no longer %s", scope, effect.Past())
			}
			return nil
		})
	}
	return cmd
}

// listed lists overrides for people.
func listed(overrides []reconciler.Override) string {
	var each []string
	for _, o := range overrides {
		each = append(each, clean(o.String()))
	}
	return strings.Join(each, "; ")
}

// keptScope returns the scope of an override with its kind as the kind is spelt. The error is
// KindNotFound unless the reconciler keeps something that the override is of. If that cannot be
// known, keptScope says so and returns no error: what is in the way may be why somebody overrides.
func (a *app) keptScope(ctx context.Context, client *clientv3.Client, c config, logger *slog.Logger, o reconciler.Override) (string, error) {
	if err := o.CheckScope(); err != nil {
		return "", err
	}
	if strings.EqualFold(o.Scope, reconciler.ScopeAll) {
		return reconciler.ScopeAll, nil
	}
	kept, err := resources.FindKept(ctx, c.kubeconfig, c.options())
	if err != nil {
		return "", fleet.Errorf(fleet.KindInvalid, "%w", err)
	}
	kind, object, single := strings.Cut(o.Scope, " ")
	var those, kinds []string
	for _, key := range kept.Objects {
		if o.Covers(key.Group, key.Kind, key.Namespace, key.Name) {
			scope := key.Kind
			if strings.Contains(kind, ".") {
				scope += "." + key.Group
			}
			if single {
				scope += " " + object
			}
			return scope, nil
		}
		if (reconciler.Override{Scope: kind}).Covers(key.Group, key.Kind, key.Namespace, key.Name) {
			those = append(those, key.String())
		}
		kinds = append(kinds, key.Kind)
	}
	set, err := node.NewRegistry(client, c.layout, logger).List(ctx)
	if err != nil {
		return "", unreachable(err)
	}
	for _, n := range set.Nodes {
		if n.Source != nil && n.Source.Digest != kept.Source.Digest {
			kept.Unknown = append(kept.Unknown, fmt.Sprintf("node %s has other manifests than this one", n.Name))
		}
	}
	switch {
	case len(kept.Unknown) > 0:
		a.note("whether the reconciler keeps any %s is not known, so this %s may be of nothing: %s", o.Scope, o.Effect, strings.Join(kept.Unknown, "; "))
		return o.Scope, nil
	case len(those) > 0:
		return "", fleet.Errorf(fleet.KindNotFound, "the reconciler keeps no %s: of that kind it keeps %s", o.Scope, some(those))
	}
	return "", fleet.Errorf(fleet.KindNotFound, "the reconciler keeps no %s: name one of the kinds that it keeps, which are %s", o.Scope, some(kinds))
}

// some lists the first of what there is, each once.
func some(all []string) string {
	const most = 10
	slices.Sort(all)
	all = slices.Compact(all)
	if more := len(all) - most; more > 0 {
		return strings.Join(all[:most], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(all, ", ")
}
