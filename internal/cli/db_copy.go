package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/fleet"
)

// copiedTables is what db copy prints.
type copiedTables struct {
	From   string               `yaml:"from"`
	To     string               `yaml:"to"`
	Tables []daemon.CopiedTable `yaml:"tables"`
}

func (a *app) dbCopyCommand() *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use:   "copy --from URL --to URL",
		Short: "Copy a fleet into a new database, such as from the embedded one to PostgreSQL",
		Long: `Copy needs both databases to itself: stop every control plane first. The source must have the schema that this program
needs ("ironherd db migrate" brings it there), and the target must be new. All is copied and compared, row by row, before any of it
counts; a copy that fails leaves the target empty and the source as it was. One that is killed leaves the source waiting, too: "ironherd db
accept-restore" on it ends that.

Afterwards there are two databases of one fleet, and a control plane on each would undo what the other does. So both wait, with whatever
destroys or restarts machines, until you say which one counts: put its URL into the configuration, run "ironherd db accept-restore", and
put the other one away.`,
		Example: `  ironherd db copy --from sqlite:/var/lib/ironherd/ironherd.db --to 'postgres://ironherd@db.example/ironherd?sslmode=verify-full'`,
		Args:    exactly,
	}
	cmd.Flags().StringVar(&from, "from", "", "the database that has the fleet: sqlite:FILE or postgres://user@host:port/database")
	cmd.Flags().StringVar(&to, "to", "", "the database that is to have it; a password comes from PGPASSWORD or ~/.pgpass")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case from == "":
			return fleet.Errorf(fleet.KindInvalid, "--from must be set to the database that has the fleet")
		case to == "":
			return fleet.Errorf(fleet.KindInvalid, "--to must be set to the database that is to have it")
		}
		last := time.Now()
		tables, replaced, err := daemon.CopyDatabase(cmd.Context(), from, to, func(table string, rows, of int64) {
			if time.Since(last) > time.Second {
				last = time.Now()
				a.note("%s: %d of %s", table, rows, plural(int(of), "row"))
			}
		})
		if err != nil {
			return err
		}
		if err := a.print(*output, copiedTables{From: from, To: to, Tables: tables}, func(w *screen) { copiedTable(w, tables) }); err != nil {
			return err
		}
		if replaced > 0 {
			a.note("%s could not be stored as they were: where they had bytes that are no text, they have U+FFFD now", plural(int(replaced), "text"))
		}
		a.note("both databases wait for `%s` on the one that counts from now on", a.commandWith("db accept-restore", "config"))
		return nil
	}
	return cmd
}

func copiedTable(w *screen, tables []daemon.CopiedTable) {
	rows := make([][]string, len(tables))
	for i, t := range tables {
		rows[i] = []string{t.Name, fmt.Sprint(t.Rows), t.Digest}
	}
	w.table([]string{"TABLE", "ROWS", "DIGEST (BOTH)"}, rows)
}
