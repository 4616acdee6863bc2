package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/ironherd/ironherd/internal/remote"
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
	switch err := writeOnce(path, data); {
	case errors.Is(err, os.ErrExist):
		return remote.OpenKey(path)
	case err != nil:
		return nil, fmt.Errorf("store SSH key: %w", err)
	}
	logger.Info("made an SSH key", slog.String("path", path), slog.String("fingerprint", key.Fingerprint()))
	return key, nil
}

// writeOnce writes a new file of mode 0600. The file appears under its path only when it is
// complete. The error is os.ErrExist when one is there already.
func writeOnce(path string, data []byte) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(file.Name())) }()
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Link(file.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
