package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/secret"
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
