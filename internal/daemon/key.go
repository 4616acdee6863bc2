package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/internal/server"
)

// openKey reads the private key that machines are reached with. It makes one when none is there.
// Two processes that start at the same time end up with the same key. The public half is beside it
// afterwards, for people to copy; that it cannot be written there is logged.
func openKey(path string, logger *slog.Logger) (*remote.Key, error) {
	key, err := readOrMakeKey(path, logger)
	if err != nil {
		return nil, err
	}
	if err := keepPublic(path+".pub", key.Public(), logger); err != nil {
		logger.Warn("cannot store the public half of the SSH key", slog.Any("err", err))
	}
	return key, nil
}

// keepPublic writes the public half where it is missing, or where a part of it alone was written.
// What else is in the line, such as a comment, may differ. A file that holds something else is left
// alone.
func keepPublic(path, public string, logger *slog.Logger) error {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	switch there := strings.TrimSpace(string(content)); {
	case strings.HasPrefix(there+" ", public+" "):
		return nil
	case !strings.HasPrefix(public+" ironherd", there):
		return fmt.Errorf("%s holds something else; the public half is %s", path, public)
	}
	if err := os.WriteFile(path, []byte(public+" ironherd\n"), 0o644); err != nil {
		return err
	}
	logger.Info("wrote the public half of the SSH key", slog.String("path", path))
	return nil
}

// needsCertificates says whether the process proves itself to agents, or tells them whom to trust.
func (d *Daemon) needsCertificates() bool {
	c := d.config
	return c.Has(fleet.RoleAgentAPI) || c.Has(fleet.RoleInitializer) && c.Initializer.EndpointCA == ""
}

// checkFiles reads the key and the configured certificates that a start reads, as far as they are
// there. It comes before the database: a start brings an embedded one to the schema of its version,
// and the version from before does not start on that. So a start that is refused for them leaves
// the way back.
func (d *Daemon) checkFiles() error {
	c, logger := d.config, slog.New(slog.DiscardHandler)
	if _, err := os.Stat(c.SSH.KeyFile); !errors.Is(err, os.ErrNotExist) {
		if _, err := remote.OpenKey(c.SSH.KeyFile); err != nil {
			return err
		}
	}
	if agents := c.AgentAPI.TLS; agents.Certificate != "" && d.needsCertificates() {
		if _, err := agents.Open(c.Dir, c.AgentAPI.Hosts(c.Initializer.Endpoint), c.GivenToAgents(), logger); err != nil {
			return err
		}
	}
	if operators := c.OperatorAPI.TLS; operators.Certificate != "" && c.Has(fleet.RoleOperatorAPI) {
		if _, err := server.LoadCertificates(server.ForOperators, operators.Certificate, operators.Key, "", logger); err != nil {
			return err
		}
	}
	return nil
}

func readOrMakeKey(path string, logger *slog.Logger) (*remote.Key, error) {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return remote.OpenKey(path)
	}
	key, data, err := remote.NewKey("ironherd")
	if err != nil {
		return nil, err
	}
	switch err := secret.Write(path, data, false); {
	case errors.Is(err, os.ErrExist):
		return remote.OpenKey(path)
	case err != nil:
		return nil, fmt.Errorf("store SSH key: %w", err)
	}
	logger.Info("made an SSH key", slog.String("path", path), slog.String("fingerprint", key.Fingerprint()))
	return key, nil
}

// refuseAnotherKey returns an error where the SSH key is missing and the database has machines. A
// start would make another one, which their hosts do not admit. Errors of this kind are
// KindTemporary, because the file may be there by and by, as after a mount.
func (d *Daemon) refuseAnotherKey(ctx context.Context) error {
	path := d.config.SSH.KeyFile
	return d.refuseAnother(ctx, path, nil, "their hosts do not admit another SSH key",
		`ssh-keygen -t ed25519 -N "" -f '`+path+"'", "put its public half into authorized_keys of every host before you start")
}

// withoutAgent are the states of machines that know no authority yet.
var withoutAgent = []fleet.State{fleet.StateCreating, fleet.StateProvisioning, fleet.StateProvided}

// acceptAnother makes another authority count, for people who have lost the one that agents trust.
const (
	acceptAnother      = "ironherd db accept-authority"
	afterAcceptAnother = "pause recovery right after the start: agents are silent until they have been started again"
)

// refuseAnotherAuthority is refuseAnotherKey for the authority of the agent API. Where another
// process has made machines that have no agent, the first one is made now.
func (d *Daemon) refuseAnotherAuthority(ctx context.Context) error {
	path := server.ForAgents.KeyFiles(d.config.Dir)[0]
	return d.refuseAnother(ctx, path, withoutAgent, "their agents do not trust another authority", acceptAnother, afterAcceptAnother)
}

// refuseAnother is both: it counts the machines that are not in the harmless states. The command
// makes a file at the path, for people who want that all the same.
func (d *Daemon) refuseAnother(ctx context.Context, path string, harmless []fleet.State, useless, command, then string) error {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return nil // whoever reads it says what is wrong
	}
	n, err := d.machinesBut(ctx, harmless)
	if err != nil || n == 0 {
		return err
	}
	return fleet.Errorf(fleet.KindTemporary,
		"%s is missing, and no other is made, because the database knows machines (%d), and %s: "+
			"put the file back from a backup, or copy it from another control plane of this fleet; if it is lost, run `%s` as this process's user, and %s",
		path, n, useless, command, then)
}

// machinesBut counts the machines that are not in these states.
func (d *Daemon) machinesBut(ctx context.Context, states []fleet.State) (n int, err error) {
	summary, err := d.db.Summary(ctx)
	n = summary.Machines
	for _, state := range states {
		n -= summary.States[state]
	}
	return n, err
}

// keepAuthority makes the authority of the agent API where there is none, and returns an error of
// kind Temporary where that under dir is not the fleet's: agents that were given the one would
// refuse this process, and those that it starts would refuse all others. Nobody else has an
// embedded database: there another one takes its place while no machine has an agent.
func (d *Daemon) keepAuthority(ctx context.Context) error {
	ours, err := server.MakeAuthority(server.ForAgents, d.config.Dir)
	if err != nil {
		return err
	}
	recorded, err := d.db.KeepAuthority(ctx, ours)
	if err != nil || recorded == ours {
		return err
	}
	n, err := d.machinesBut(ctx, withoutAgent)
	if err != nil {
		return err
	}
	if n == 0 && d.config.Database.URL == "" {
		return d.db.AcceptAuthority(ctx, "start", ours)
	}
	return fleet.Errorf(fleet.KindTemporary,
		"%s is another authority than the database has for this fleet (SHA-256 fingerprint %s, there %s), and agents that know the one refuse the other: "+
			"copy the file from a control plane whose agents are heard, or put it back from a backup; if that one is lost, or this one is right, "+
			"stop all control planes, run `%s` as this process's user, and %s",
		server.ForAgents.KeyFiles(d.config.Dir)[0], ours, recorded, acceptAnother, afterAcceptAnother)
}
