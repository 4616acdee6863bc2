package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) dbCommand() *cobra.Command {
	return group("db", "Look after the database", a.dbCheckCommand(), a.dbMigrateCommand(), a.dbAcceptRestoreCommand(),
		a.dbAcceptAuthorityCommand(), a.dbBackupCommand(), a.dbRestoreCommand(), a.dbCopyCommand())
}

// checked is what db check prints.
type checked struct {
	Database string           `yaml:"database"`
	Findings []daemon.Finding `yaml:"findings"`
}

func (a *app) dbCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the invariants that can be checked from the database alone",
		Long: `Check opens the database of the configuration and looks for rows that contradict each other, and for damage of the file of an embedded one, which must not be in
use; PostgreSQL may be: what somebody else has locked is passed. It repairs nothing, and fails when it finds something, or has not looked at
all of it. It does not migrate either: where the schema is older than this program needs, run ironherd db migrate first.`,
		Example: `  ironherd db check --config /etc/ironherd/ironherd.yaml`,
		Args:    exactly,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := a.loadConfig(nil)
		if err != nil {
			return err
		}
		findings, failed := daemon.CheckDatabase(cmd.Context(), loaded)
		if failed != nil && len(findings) == 0 {
			return failed
		}
		result := checked{Database: loaded.Database.String(), Findings: findings}
		if err := a.print(*output, result, func(w *screen) { findingTable(w, result) }); err != nil {
			return err
		}
		if len(findings) == 0 {
			return nil
		}
		if failed != nil {
			a.note("%v", failed)
		}
		return fleet.Errorf(fleet.KindUnknown, "%s in %s: please report what is printed above", plural(len(findings), "contradiction"), loaded.Database)
	}
	return cmd
}

func findingTable(w *screen, c checked) {
	if len(c.Findings) == 0 {
		w.line("%s is in order.", c.Database)
		return
	}
	rows := make([][]string, len(c.Findings))
	for i, f := range c.Findings {
		rows[i] = []string{f.Invariant, f.Subject, f.Detail}
	}
	w.table([]string{"INVARIANT", "SUBJECT", "DETAIL"}, rows)
}

// startsShown is how many agent starts a table of what goes on has.
const startsShown = 50

func (a *app) dbAcceptRestoreCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accept-restore",
		Short: "Make a restored or copied database the one that counts",
		Long: `While the database looks like a restored or copied one, nothing that destroys or restarts machines is done: another control plane may
be at work with the original, and what the database asks for may be done or called off by now. When you are sure that neither is so, accept it.
Where something would go on, that is shown, and nothing is accepted without --yes: also agents that are to be started again, because they have
not been heard since the database came back. Such a machine may have been installed or released since; an old database cannot know. Put it into
maintenance, or take it off its list: ironherd recovery pause keeps it from being restarted, and not from an agent. The embedded database must
not be in use: stop the control plane first.`,
		Example: `  ironherd db accept-restore --config /etc/ironherd/ironherd.yaml
  ironherd db accept-restore --config /etc/ironherd/ironherd.yaml --yes`,
		Args: exactly,
	}
	sure, output := cmd.Flags().Bool("yes", false, "accept it, whatever goes on by that"), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := a.loadConfig(nil)
		if err != nil {
			return err
		}
		restored, err := daemon.AcceptRestore(cmd.Context(), loaded, "operator", *sure)
		if err != nil {
			return err
		}
		waits := restored.Evidence != "" && !restored.Accepted
		err = a.print(*output, restored, func(w *screen) {
			switch {
			case waits:
				goesOnTable(w, restored.GoesOn)
			case restored.Accepted:
				w.line("%s counts from now on (it looked restored or copied: %s)", loaded.Database, restored.Evidence)
			default:
				w.line("%s does not look restored or copied: nothing was to be accepted", loaded.Database)
			}
		})
		if err != nil || !waits {
			return err
		}
		return fleet.Errorf(fleet.KindConflict, "nothing is accepted yet (%s): what is listed above would go on; if all of it is still wanted, give --yes",
			restored.Evidence)
	}
	return cmd
}

// goesOnTable shows what goes on: first all that somebody asked for and all repairs, which destroy
// or restart, and then some of the agent starts, of which a copied fleet has one for each machine.
func goesOnTable(w *screen, goesOn []daemon.Withheld) {
	starts := func(g daemon.Withheld) bool { return g.Process == string(fleet.ProcessAgentStart) }
	shown := slices.DeleteFunc(slices.Clone(goesOn), starts)
	most := len(shown) + startsShown
	for _, g := range goesOn {
		if starts(g) && len(shown) < most {
			shown = append(shown, g)
		}
	}
	rows := make([][]string, len(shown))
	for i, g := range shown {
		rows[i] = []string{g.Machine, g.Process, g.Reason}
	}
	w.table([]string{"MACHINE", "PROCESS", "WHY"}, rows)
	if more := len(goesOn) - len(shown); more > 0 {
		w.line("and %d more (-o json shows all)", more)
	}
}

func (a *app) dbAcceptAuthorityCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accept-authority",
		Short: "Let agents be given another authority from now on",
		Long: `The database knows the authority that agents are given (agent-ca.pem in dir), so that no control plane joins the fleet with another one.
When that file is lost, or is to be replaced, stop all control planes, and accept the one that is in dir; where none is there, one is made. Copy
it to the other control planes before you start them. Agents that run, and installed systems that have yet to call, keep the authority that they
were given and refuse the new one: pause recovery right after the start. An agent that runs in place is started again over SSH, one in memory
after its machine has restarted. The embedded database must not be in use.`,
		Example: `  ironherd db accept-authority --config /etc/ironherd/ironherd.yaml`,
		Args:    exactly,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := a.loadConfig(nil)
		if err != nil {
			return err
		}
		accepted, err := daemon.AcceptAuthority(cmd.Context(), loaded, "operator")
		if err != nil {
			return err
		}
		return a.say(*output, accepted, "agents are given %s from now on (SHA-256 fingerprint %s)", accepted.File, accepted.Fingerprint)
	}
	return cmd
}

// migrated is what db migrate prints.
type migrated struct {
	Database string `yaml:"database"`
	// From and To are versions of the schema; they are the same where nothing was to be done.
	From int64 `yaml:"from"`
	To   int64 `yaml:"to"`
}

func (a *app) dbMigrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database's schema to the version that this program needs",
		Long: `On the embedded database "ironherd serve" does it, too, when it starts: use it to do so beforehand, or to see that it goes well. On
PostgreSQL only this command does it, for an empty database as well; the control planes of the version before may go on meanwhile.`,
		Example: `  ironherd db migrate --config /etc/ironherd/ironherd.yaml`,
		Args:    exactly,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := a.loadConfig(nil)
		if err != nil {
			return err
		}
		from, to, err := daemon.Migrate(cmd.Context(), loaded)
		if err != nil {
			return err
		}
		result := migrated{Database: loaded.Database.String(), From: from, To: to}
		if from == to {
			return a.say(*output, result, "%s has schema version %d already", loaded.Database, to)
		}
		return a.say(*output, result, "%s was brought from schema version %d to %d", loaded.Database, from, to)
	}
	return cmd
}
