package cli

import (
	"bytes"
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

func (a *app) machineListCommand() *cobra.Command {
	var which selector
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List machines and what state they are in",
		Example: `  ironherd machine list
  ironherd machine list --state silent --state failed
  ironherd machine list --location "rack 4"
  ironherd machine list --label role=database --label zone=a
  ironherd machine list --provider metal -o json`,
		Args: exactly,
	}
	a.selectorFlags(cmd, &which, "only machines")
	timeout, output := timeoutFlag(cmd, defaultTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := which.check(); err != nil {
			return err
		}
		whole, each := bounds(cmd, *timeout) // whoever reads the output may take their time
		return a.ask(cmd, whole, func(ctx context.Context, client fleetClient) error {
			if *output != formatTable {
				return a.listPages(ctx, client, *output, which, each)
			}
			var all []*fleetv1.Machine
			err := which.each(ctx, client, each, func(page []*fleetv1.Machine) error {
				all = append(all, page...)
				return nil
			})
			if err != nil {
				return err
			}
			return a.print(*output, nil, func(w *screen) { machineTable(w, all, which.narrows() || which.after != "") })
		})
	}
	return cmd
}

// listPages prints, page by page, what print would of one response that has all machines: no more
// than a page is in memory. What begins and ends that is cut off each page.
func (a *app) listPages(ctx context.Context, client fleetClient, f format, which selector, limit time.Duration) error {
	var empty bytes.Buffer
	if err := encode(&empty, f, &fleetv1.ListMachinesResponse{}); err != nil {
		return err
	}
	head, tail, _ := strings.Cut(empty.String(), "[]")
	begin, between, end := head+"[\n", ",\n", "\n  ]"+tail
	if f == formatYAML {
		begin, between, end = strings.TrimSuffix(head, " ")+"\n", "", strings.TrimPrefix(tail, "\n")
	}
	written := false
	err := which.each(ctx, client, limit, func(page []*fleetv1.Machine) error {
		if len(page) == 0 {
			return nil
		}
		var out bytes.Buffer
		if err := encode(&out, f, &fleetv1.ListMachinesResponse{Machines: page}); err != nil {
			return err
		}
		text := bytes.TrimSuffix(out.Bytes(), []byte(end))
		if written {
			text = append([]byte(between), bytes.TrimPrefix(text, []byte(begin))...)
		}
		written = true
		return a.write(text)
	})
	switch {
	case err != nil:
		return err
	case written:
		return a.write([]byte(end))
	}
	return a.write(empty.Bytes())
}

// machineTable prints machines. Of none it says whether they were selected.
func machineTable(w *screen, machines []*fleetv1.Machine, selected bool) {
	switch {
	case len(machines) == 0 && selected:
		w.line("No machine fits.")
		return
	case len(machines) == 0:
		w.line("No machines.")
		return
	}
	rows := make([][]string, len(machines))
	for i, m := range machines {
		rows[i] = []string{
			m.GetHostname(), m.GetState(), age(m.GetStateSince()), m.GetAddress(), m.GetLocation(), m.GetProvider(),
			age(m.GetLastSeenAt()), m.GetId(),
		}
	}
	w.table([]string{"HOSTNAME", "STATE", "SINCE", "ADDRESS", "LOCATION", "PROVIDER", "SEEN", "ID"}, rows)
}
