package initializer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/remote"
)

// directories are those of a host that the agent may be put into, in turn.
func (c Config) directories() []string {
	all := []string{path.Clean(c.TargetPath)}
	for _, other := range c.OtherTargetPaths {
		all = append(all, path.Clean(other))
	}
	return all
}

// withAgent puts the agent into a directory of the host and has run execute it there. Where nothing
// can be put into a directory, or nothing executed there, it goes on with the next one.
func (i *Initializer) withAgent(ctx context.Context, host Host, logger *slog.Logger, run func(executable string) error) error {
	agent, err := host.Choose(ctx, i.agents...)
	switch {
	case fleet.KindOf(err) == fleet.KindUnsupported:
		return fmt.Errorf("%w; name the agent for it in initializer.other_agent_executables (`make agents` builds those for amd64 and arm64)", err)
	case err != nil:
		return err
	}
	var reasons []string
	notRoot := ""
	directories := i.config.directories()
	for _, directory := range directories {
		err = i.runIn(ctx, host, agent, directory, logger, run)
		why := remote.Unusable(err)
		if why == "" {
			return err
		}
		logger.InfoContext(ctx, "agent cannot be started from a directory", slog.String("directory", directory), slog.Any("err", err))
		reasons = append(reasons, directory+" ("+why+")")
		if wrong, ok := errors.AsType[*remote.DirectoryError](err); ok && wrong.NotRoot != "" {
			notRoot = wrong.NotRoot
		}
	}
	if len(directories) > 1 { // else the error says more
		err = fleet.Errorf(fleet.KindTemporary, "no directory of the host can be used for the agent: %s", strings.Join(reasons, ", "))
	}
	switch {
	case notRoot != "":
		return fmt.Errorf("%s has not root's rights, and sudo is never used: let root log in, or another user of uid 0 "+
			"(initializer.user, or `user` of the host in a list); %w", notRoot, err)
	case len(directories) > 1:
		return fmt.Errorf("%w; make one usable, or name another in initializer.other_target_paths", err)
	}
	return err
}

func (i *Initializer) runIn(
	ctx context.Context, host Host, agent *remote.Content, directory string, logger *slog.Logger, run func(executable string) error,
) error {
	uploaded, err := host.Upload(ctx, agent, path.Join(directory, executableName), 0o700)
	if err != nil {
		return fmt.Errorf("upload agent: %w", err)
	}
	logger.DebugContext(ctx, "agent is on the machine", slog.String("path", uploaded.Path), slog.Int64("sent", uploaded.Sent))
	return run(uploaded.Path)
}
