package takeover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrOtherMachine says that the host belongs to another machine's record now.
var ErrOtherMachine = errors.New("this host was taken over as another machine")

// Leave ends what takeovers of that machine have begun on the host below root: it stops the agent
// and removes its state, its runtime directory and its log, and the executables that control
// planes have put into the directories. A directory goes with them when nothing else is in it, and
// it looks as if it had been made for them. What is not there needs no leaving, so Leave can be
// repeated after it was interrupted anywhere.
//
// ErrOtherMachine when the newest takeover was for another machine, SeenError when it is newer
// than the generation (0: any will do): then nothing is touched.
func Leave(ctx context.Context, root, machine string, generation int64, directories ...string) error {
	store := NewStore(root)
	if _, err := os.Stat(store.dir); err == nil {
		lock, err := store.lockTakeover(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = lock.Close() }()
		if err := store.forget(machine, generation); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := StopAgent(ctx, root); err != nil {
		return err
	}
	// Executables first: while the state's directory is there, a repeated call finds its way.
	for _, directory := range directories {
		if err := removeExecutables(filepath.Join(root, directory)); err != nil {
			return err
		}
	}
	for _, path := range []string{filepath.Join(root, "var/log/ironherd-agent.log"), filepath.Dir(pidPath(root)), store.dir} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// removeExecutables removes the agent's executables from a directory, and then the directory if it
// is empty and could have been made for them: control planes make one for root alone. Those that a
// system has by itself, such as /opt, are open to others. That the directory stays, where something
// is mounted there for instance, is no failure, because nothing of ours is in it.
func removeExecutables(directory string) error {
	executables, err := filepath.Glob(filepath.Join(directory, "ironherd-agent-*"))
	if err != nil {
		return fmt.Errorf("find the agent's executables: %w", err)
	}
	for _, path := range executables {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	if info, err := os.Lstat(directory); err == nil && len(executables) > 0 && info.IsDir() && info.Mode().Perm() == 0o700 {
		_ = os.Remove(directory)
	}
	return nil
}

// forget removes the state of that machine: its agent can write nothing any more.
func (s *Store) forget(machine string, generation int64) error {
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	// A state that cannot be read is no other machine's.
	state, err := s.Load()
	switch seen := state.GetInit().GetTakeoverGeneration(); {
	case err != nil:
	case state.GetInit().GetMachineId() != machine:
		return ErrOtherMachine
	case generation > 0 && seen > generation:
		return &SeenError{seen}
	}
	if err := os.Remove(s.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the agent's state: %w", err)
	}
	return nil
}
