package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/secret"
)

// openKey reads the private key that machines are reached with. It makes one when none is there.
// Two processes that start at the same time end up with the same key.
func openKey(path string, logger *slog.Logger) (*remote.Key, error) {
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
	if err := os.WriteFile(path+".pub", []byte(key.Public()+" ironherd\n"), 0o644); err != nil {
		return nil, fmt.Errorf("store the public half of the SSH key: %w", err)
	}
	logger.Info("made an SSH key", slog.String("path", path), slog.String("fingerprint", key.Fingerprint()))
	return key, nil
}
