package cli

import (
	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/daemon"
)

// backedUp is what db backup and db restore print.
type backedUp struct {
	Database string `yaml:"database"`
	Backup   string `yaml:"backup"`
}

func (a *app) dbBackupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write the embedded database, as it is now, into a new file",
		Long: `Backup may run while the control plane does, and holds nothing up. FILE appears complete and on the disk, or not at all; nothing is
overwritten. PostgreSQL has its own means: see ops/database.md in the docs.`,
		Example: `  ironherd db backup /var/backups/ironherd-$(date +%F).db --config /etc/ironherd/ironherd.yaml`,
		Args:    exactly,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		loaded, err := a.loadConfig(nil)
		if err != nil {
			return err
		}
		if err := daemon.Backup(cmd.Context(), loaded, args[0]); err != nil {
			return err
		}
		return a.say(*output, backedUp{loaded.Database.Path, args[0]}, "%s is a backup of %s", args[0], loaded.Database.Path)
	}
	return cmd
}

func (a *app) dbRestoreCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Put a backup in the place of an embedded database that is gone",
		Long: `Restore makes the database of the configuration from a backup. There must be none: move away what is left of it, and keep it. A restored
database is old: until you have compared it with what is really there and run "ironherd db accept-restore", nothing that destroys or
restarts machines is done.`,
		Example: `  ironherd db restore /var/backups/ironherd-2026-11-20.db --config /etc/ironherd/ironherd.yaml`,
		Args:    exactly,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		loaded, err := a.loadConfig(nil)
		if err != nil {
			return err
		}
		if err := daemon.Restore(cmd.Context(), loaded, args[0]); err != nil {
			return err
		}
		return a.say(*output, backedUp{loaded.Database.Path, args[0]}, "%s was restored from %s; what destroys or restarts machines waits for `%s`",
			loaded.Database.Path, args[0], a.commandWith("db accept-restore", "config"))
	}
	return cmd
}
