package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/sim/fault"
)

// faultSyntax is how --faults is written, for the help of commands that have it.
const faultSyntax = `Each fault is NAME=SHARE% of its opportunities, or NAME=#NUMBER of those it happens to, and may end in :DURATION where it has one:
` + "`--faults lost-reply=5%,429=5%:2s,ssh-refused=#1+3`" + `.`

// faultNames lists the faults for the help of commands that have --faults.
func faultNames() string {
	var text strings.Builder
	width := 0
	for _, d := range fault.Descriptions() {
		width = max(width, len(d.Kind))
	}
	for _, d := range fault.Descriptions() {
		fmt.Fprintf(&text, "\n  %-*s  %s: %s", width, d.Kind, d.Opportunity, d.Meaning)
	}
	return text.String()
}

// faultRow is a fault as it is printed.
type faultRow struct {
	Name        string `yaml:"name"`
	Opportunity string `yaml:"opportunity"`
	Duration    string `yaml:"duration,omitempty"`
	Meaning     string `yaml:"meaning"`
}

func (a *app) simFaultsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "faults",
		Short: "List what can go wrong in a simulated world",
		Long: `Faults lists the names that --faults of sim and demo knows, what an opportunity of each is, and what happens then.

` + faultSyntax,
		Example: `  ironherd sim faults
  ironherd demo --faults 429=10%:2s,list-order=100% --until installed`,
		Args: exactly,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		var rows []faultRow
		for _, d := range fault.Descriptions() {
			row := faultRow{Name: string(d.Kind), Opportunity: d.Opportunity, Meaning: d.Meaning}
			if d.Duration > 0 {
				row.Duration = d.Duration.String()
			}
			rows = append(rows, row)
		}
		return a.print(*output, rows, func(w *screen) {
			table := make([][]string, len(rows))
			for i, r := range rows {
				table[i] = []string{r.Name, r.Opportunity, r.Duration, r.Meaning}
			}
			w.table([]string{"NAME", "OPPORTUNITY", "DURATION", "WHAT HAPPENS"}, table)
		})
	}
	return cmd
}
