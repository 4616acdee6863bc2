package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/node"
)

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show who leads, what is announced, the nodes, and what blocks",
		Args:  cobra.NoArgs,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withEtcd(cmd.Context(), func(c config, client *clientv3.Client, logger *slog.Logger) error {
			o, err := reconciler.Look(cmd.Context(), client, c.layout, c.build, logger)
			if err != nil {
				return unreachable(err)
			}
			return a.print(*output, o, func(w io.Writer) { statusTable(w, o) })
		})
	}
	return cmd
}

func statusTable(w io.Writer, o reconciler.Overview) {
	pairs := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	pair := func(name, format string, args ...any) {
		if name != "" {
			name += ":"
		}
		_, _ = fmt.Fprintf(pairs, name+"\t"+format+"\n", args...)
	}
	if o.Leader == nil {
		pair("leader", "none: %s", clean(o.NoLeader))
	} else {
		pair("leader", "%s (release %s, standing since %s)", clean(o.Leader.Name), o.Leader.Build.Release, o.Leader.Since.Format(time.RFC3339))
		if o.Leader.Fault != "" {
			pair("", "it cannot do its work, and hands over as soon as a candidate can: %s", clean(o.Leader.Fault))
		}
	}
	switch {
	case !o.Status.Found:
		pair("status", "none yet")
	case o.Status.Unreadable != "":
		pair("status", "unreadable: %s", clean(o.Status.Unreadable))
	default:
		pair("status", "%s", o.Status.Status)
	}
	switch {
	case o.Holds:
		pair("blocked", "%s", clean(o.Reason))
	case o.Reason != "":
		pair("leader does", "%s", clean(o.Reason))
	}
	if o.Differ != "" {
		pair("settings", "%s keep different objects, though their reconcilers are of one release: compare built_in, default_storage_class and storage_capacity, "+
			"and the builds; what the cluster has may change with each leader", clean(o.Differ))
	}
	if t := o.Trouble; t != nil {
		waits := "; no API server waits for it"
		if t.Blocks {
			waits = "; API servers may have to wait for it"
		}
		pair("trouble", "%s (at %s, since %s%s)", clean(t.Error), clean(t.Node), t.Since.Format(time.RFC3339), waits)
		for _, f := range t.Failures {
			pair("", "%s: %s", clean(f.Object), clean(f.Reason))
		}
	}
	if o.Deletions != nil {
		deletions(pair, *o.Deletions)
	}
	for _, each := range o.Overrides {
		pair(each.Effect.Past(), "%s", clean(each.String()))
	}
	if a := o.Approval; a != nil {
		pair("approved", "manifests %s, by %s until %s: %s", clean(a.Digest), clean(a.By), a.Until.Format(time.RFC3339), clean(a.Reason))
	}
	_ = pairs.Flush()
	_, _ = fmt.Fprintln(w)
	nodes := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(nodes, "NODE\tRELEASE\tROLES\tMANIFESTS\tAPI SERVER\tWHY")
	for _, n := range o.Nodes {
		admitted := "waits"
		if n.Admitted.OK {
			admitted = "may serve"
		}
		if !n.Counts() {
			admitted = "-"
		}
		why := n.Admitted.Reason
		if n.Fault != "" {
			why = n.Fault
		}
		_, _ = fmt.Fprintf(nodes, "%s\t%s\t%s\t%s\t%s\t%s\n", clean(n.Name), releaseOf(n.Node), clean(strings.Join(n.Roles, ",")),
			clean(sourceOf(n.Node)), admitted, clean(why))
	}
	_ = nodes.Flush()
}

// deletions shows what is being deleted, and what will not be.
func deletions(pair func(name, format string, args ...any), d reconciler.Deletions) {
	name := "being deleted"
	for _, each := range d.Objects {
		pair(name, "%s: %s", clean(each.Object), clean(each.Why()))
		name = ""
	}
	if more := d.Count - len(d.Objects); more > 0 {
		pair(name, "and %d more", more)
	}
	if d.Unrecorded > 0 {
		pair("inventory", "%s", resources.WhyUnrecorded(d.Unrecorded))
	}
}

func releaseOf(n node.Node) string {
	switch {
	case !n.Known:
		return "unknown"
	case n.Fault != "":
		return n.Release.String() + " (last known)"
	}
	return n.Release.String()
}

// sourceOf says which manifests a node has.
func sourceOf(n node.Node) string {
	switch {
	case n.Source == nil:
		return "not told"
	case !n.Source.Whole():
		return fmt.Sprintf("%d (%d unreadable)", n.Source.Objects, n.Source.Faults)
	}
	return fmt.Sprintf("%d (%s)", n.Source.Objects, n.Source.Digest)
}

// clean removes control characters from text from outside, which could drive the terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
}

func (a *app) planCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what a pass would change, and change nothing",
		Long: `Show what a pass of this release would change, as a diff, if this node led. Nothing is changed. Etcd is asked what is paused, forced and
approved, and which manifests the other nodes have. What is held back is shown, too, with the reason and with what ends it.

With --without-etcd nobody asks etcd: the plan takes nothing for paused, forced or approved, and all nodes to have the same manifests.

Exit codes: 0 all can be as wanted, whether anything would change or not; 6 not all, which is shown; 7 etcd or the API server does not answer.`,
		Args: cobra.NoArgs,
	}
	output := outputFlag(cmd)
	alone := cmd.Flags().Bool("without-etcd", false, "do not ask etcd what is paused, forced and approved, and whether the nodes agree")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		diff, err := a.plan(cmd.Context(), *alone)
		if err != nil {
			return unreachable(err)
		}
		if err := a.print(*output, diff, func(w io.Writer) { a.diffText(w, diff, *alone) }); err != nil {
			return err
		}
		if len(diff.Failures) > 0 {
			return errPartly
		}
		return nil
	}
	return cmd
}

// plan asks for the plan; alone, without etcd.
func (a *app) plan(ctx context.Context, alone bool) (diff reconciler.Diff, err error) {
	if alone {
		c, err := a.config()
		if err != nil {
			return diff, err
		}
		logger, err := a.logger(c)
		if err != nil {
			return diff, err
		}
		applier, err := openResources(c, logger)
		if err != nil {
			return diff, err
		}
		defer applier.Close()
		return applier.Plan(ctx)
	}
	err = a.withEtcd(ctx, func(c config, client *clientv3.Client, logger *slog.Logger) error {
		applier, err := openResources(c, logger)
		if err != nil {
			return err
		}
		defer applier.Close()
		settings := c.service()
		settings.Logger = logger
		diff, err = reconciler.Plan(ctx, settings, client, applier)
		return err
	})
	return diff, err
}

// diffText writes a plan for people; alone: etcd was not asked for it.
func (a *app) diffText(w io.Writer, diff reconciler.Diff, alone bool) {
	held, unless := 0, ""
	for _, change := range diff.Changes {
		if change.Held != "" {
			held++
			_, _ = fmt.Fprintf(w, "held back: %s %s: %s\n", change.Action, clean(change.Object), clean(change.Held))
		} else {
			_, _ = fmt.Fprintf(w, "%s %s\n", change.Action, clean(change.Object))
		}
		for line := range strings.Lines(change.Text) {
			_, _ = fmt.Fprintf(w, "  %s\n", clean(strings.TrimSuffix(line, "\n")))
		}
	}
	for _, each := range diff.Deleting {
		_, _ = fmt.Fprintf(w, "being deleted: %s: %s\n", clean(each.Object), clean(each.Why()))
	}
	for _, failure := range diff.Failures {
		_, _ = fmt.Fprintf(w, "not as wanted: %s: %s\n", clean(failure.Object), clean(failure.Reason))
	}
	if alone {
		unless = ", and etcd, which was not asked, does not say so already"
	}
	if diff.Approve != "" {
		_, _ = fmt.Fprintf(w, "if these manifests are what you want%s: %s\n", unless, clean(a.approval(diff.Approve)))
	}
	_, _ = fmt.Fprintf(w, "%d objects would change; %d are wanted", len(diff.Changes)-held, diff.Objects)
	if held > 0 {
		_, _ = fmt.Fprintf(w, "; %d changes are held back", held)
	}
	if n := len(diff.Failures); n > 0 {
		_, _ = fmt.Fprintf(w, "; %d failures", n)
	}
	_, _ = fmt.Fprintln(w)
}

func (a *app) nodeListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the nodes and their releases", Args: cobra.NoArgs}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withEtcd(cmd.Context(), func(c config, client *clientv3.Client, logger *slog.Logger) error {
			set, err := node.NewRegistry(client, c.layout, logger).List(cmd.Context())
			if err != nil {
				return unreachable(err)
			}
			return a.print(*output, set.Nodes, func(w io.Writer) {
				table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
				_, _ = fmt.Fprintln(table, "NODE\tRELEASE\tROLES\tFAULT")
				for _, n := range set.Nodes {
					_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", clean(n.Name), releaseOf(n), clean(strings.Join(n.Roles, ",")), clean(n.Fault))
				}
				_ = table.Flush()
			})
		})
	}
	return cmd
}

func (a *app) nodeRegisterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "register",
		Short: "Register this node with this release",
		Long: `Write the record of this node: its roles, and this release as that of the API server that may run here. To be run after the API server
of another release has stopped and before the one of this release starts; wait-ready does so, too.`,
		Args: cobra.NoArgs,
	}
	roles := cmd.Flags().StringSlice("role", []string{node.Controller}, "roles of this node")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withEtcd(cmd.Context(), func(c config, client *clientv3.Client, logger *slog.Logger) error {
			wrote, err := node.NewRegistry(client, c.layout, logger).
				Register(cmd.Context(), c.node, node.Record{Roles: *roles, Release: c.build.Release})
			switch {
			case err != nil:
				return unreachable(err)
			case wrote:
				a.note("node %s is registered with release %s", c.node, c.build.Release)
			default:
				a.note("node %s was registered with release %s already", c.node, c.build.Release)
			}
			return nil
		})
	}
	return cmd
}

func (a *app) nodeRemoveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a node that is gone for good",
		Long: `Remove the record of a node that is gone for good, so that it no longer blocks a release. Its API server must have stopped: nobody
reckons with it any more. A node that comes back registers itself again.`,
		Example: `  ironherd-reconciler node remove control-3 --stopped`,
		Args:    cobra.ExactArgs(1),
	}
	stopped := cmd.Flags().Bool("stopped", false, "confirm that no API server runs on that node")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !*stopped {
			return fleet.Errorf(fleet.KindInvalid, "an API server that still runs on %s would no longer be reckoned with: make sure that it has "+
				"stopped, and say so with --stopped", args[0])
		}
		return a.withEtcd(cmd.Context(), func(c config, client *clientv3.Client, logger *slog.Logger) error {
			if err := node.NewRegistry(client, c.layout, logger).Remove(cmd.Context(), args[0]); err != nil {
				return unreachable(err)
			}
			a.note("node %s is removed", args[0])
			return nil
		})
	}
	return cmd
}

func (a *app) configCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "check", Short: "Check the configuration of the service and report every fault",
		Long: `Check the configuration of the service and report every fault. Every file that it names is opened: certificates, keys, the kubeconfig and
what that names, and each manifest. The address of expose is checked if there is one.

Exit codes: 0 it is good; 2 it has a fault; 7 with --connect: it is good, but etcd or the API server cannot be used.`,
		Args: cobra.NoArgs,
	}
	connect := cmd.Flags().Bool("connect", false, "ask etcd and the API server, too")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.config()
		_, logging := a.logger(c)
		var expose error
		if c.expose != "" { // only some nodes have it
			expose = c.checkAddress()
		}
		if err = once(err, logging, c.checkRun(), expose, c.service().Validate(), c.open(cmd.Context())); err != nil {
			return err
		}
		if *connect {
			if err := a.connect(cmd.Context(), c); err != nil {
				return err
			}
		}
		a.note("the configuration is good")
		return nil
	}
	return cmd
}

// once joins errors, and says once what several of them say.
func once(errs ...error) error {
	var all []error
	said := map[string]bool{}
	for _, err := range fleet.Split(errors.Join(errs...)) {
		if !said[err.Error()] {
			said[err.Error()] = true
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// connect asks etcd and the API server once each. An endpoint without which etcd answers is told,
// and is no fault: a member may be down.
func (a *app) connect(ctx context.Context, c config) error {
	var errs []error
	fault := etcd.Diagnose(ctx, c.etcd)
	switch err := readsEtcd(ctx, c); {
	case err != nil && fault != "":
		errs = append(errs, fleet.Errorf(fleet.KindTemporary, "etcd: %s", fault))
	case err != nil:
		errs = append(errs, unreachable(err))
	case fault != "":
		a.note("etcd answers, but not every endpoint does: %s", fault)
	}
	applier, err := openResources(c, slog.New(slog.DiscardHandler))
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	defer applier.Close()
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := applier.Check(ctx); err != nil {
		errs = append(errs, fleet.Errorf(fleet.KindTemporary, "%w", err))
	}
	switch err := a.withEtcd(ctx, func(c config, client *clientv3.Client, _ *slog.Logger) error {
		return reconciler.CheckCluster(ctx, client, c.layout, applier)
	}); {
	case fleet.KindOf(err) == fleet.KindInvalid:
		errs = append(errs, err)
	case err != nil && len(errs) == 0: // else it is told already why they do not answer
		errs = append(errs, fleet.Errorf(fleet.KindTemporary, "%w", err))
	}
	return errors.Join(errs...)
}

// readsEtcd reads from etcd once, linearizably.
func readsEtcd(ctx context.Context, c config) error {
	client, err := etcd.Dial(ctx, c.etcd)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // the process ends its connections in any case
	_, err = etcd.Read(ctx, client, etcd.Range{Key: c.layout.Status()})
	return err
}

const connectTimeout = 5 * time.Second

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version, the release, and what it gets on with", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := a.config()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.env.Stdout, "ironherd-reconciler %s (%s, %s/%s)\nrelease %s, minimum reconciler %s, minimum API server %s\n",
				a.env.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, c.build.Release, c.build.MinReconciler, c.build.MinAPIServer)
			return err
		},
	}
}
