package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path"
	"strings"

	"github.com/pkg/sftp"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Uploaded says how content came to be on a host.
type Uploaded struct {
	// Path where it is.
	Path string
	// Sent is how many bytes of content went over the wire, compressed if they were; 0 when the host
	// had it already.
	Sent int64
}

// Upload makes sure that the content is on the host, at content.Path(base), with that mode. A file
// that is there with the right size is that very content: the name has the digest in it, and it
// gets its name only when it is whole. Otherwise it is sent, compressed where the host has gzip, to
// a temporary name of its own, checked and renamed; so any number of uploads may run at once.
//
// base is an absolute path; its directory exists.
func (h *Host) Upload(ctx context.Context, content *Content, base string, mode fs.FileMode) (Uploaded, error) {
	if !path.IsAbs(base) || strings.ContainsAny(base, "\x00\n") {
		return Uploaded{}, fleet.Errorf(fleet.KindInvalid, "content is uploaded to an absolute path, not %q", base)
	}
	result := Uploaded{Path: content.Path(base)}
	err := h.bounded(ctx, "upload "+result.Path, func() error {
		files, err := h.fileClient()
		if err != nil {
			return err
		}
		if present(files, result.Path, content, mode) {
			return nil
		}
		temporary := result.Path + "." + suffix()
		result.Sent, err = h.send(files, content, temporary, mode)
		if err == nil {
			err = files.PosixRename(temporary, result.Path)
		}
		if err != nil {
			_ = files.Remove(temporary) // what cannot be removed is named after its digest, and harmless
			return err
		}
		return nil
	})
	if err != nil {
		return Uploaded{}, err
	}
	return result, nil
}

// present reports whether the file is there as it should be. A wrong mode is put right.
func present(files *sftp.Client, name string, content *Content, mode fs.FileMode) bool {
	info, err := files.Stat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() != content.Size() {
		return false
	}
	return info.Mode().Perm() == mode.Perm() || files.Chmod(name, mode.Perm()) == nil
}

// send writes the content under a temporary name, and returns how many bytes went over the wire.
func (h *Host) send(files *sftp.Client, content *Content, temporary string, mode fs.FileMode) (int64, error) {
	err := h.sendCompressed(content, temporary, mode)
	var exit *ExitError
	switch {
	case err == nil:
		return int64(len(content.gzipped())), verify(files, temporary, content, h)
	case !errors.As(err, &exit):
		return 0, err
	case exit.Status != notFound:
		h.logger.Warn("host could not decompress, sending plain", slog.Any("host", h.address), slog.Any("err", err))
	}
	if err := sendPlain(files, content, temporary, mode); err != nil {
		return 0, err
	}
	return content.Size(), verify(files, temporary, content, h)
}

func (h *Host) sendCompressed(content *Content, temporary string, mode fs.FileMode) error {
	file := quoteAlways(temporary)
	line := fmt.Sprintf("gzip -dc >%s && chmod %04o %s", file, mode.Perm(), file)
	_, err := h.execute(line, Command{Stdin: bytes.NewReader(content.gzipped()), OnStderr: func(string) {}})
	return err
}

func sendPlain(files *sftp.Client, content *Content, temporary string, mode fs.FileMode) error {
	file, err := files.Create(temporary)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	_, err = file.ReadFrom(bytes.NewReader(content.data))
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := files.Chmod(temporary, mode.Perm()); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	return nil
}

// verify compares size and, where the host can tell it, the digest. Without sha256sum the size has
// to do: SSH and gzip both check what they carry.
func verify(files *sftp.Client, name string, content *Content, h *Host) error {
	info, err := files.Stat(name)
	if err != nil {
		return fmt.Errorf("look at what was written: %w", err)
	}
	if info.Size() != content.Size() {
		return fleet.Errorf(fleet.KindTemporary, "%d of %d bytes arrived", info.Size(), content.Size())
	}
	output, err := h.execute("sha256sum "+quoteAlways(name), Command{OnStderr: func(string) {}})
	var exit *ExitError
	switch {
	case errors.As(err, &exit):
		return nil
	case err != nil:
		return err
	}
	// A name with a backslash is printed escaped, after a leading backslash.
	digest, _, _ := strings.Cut(strings.TrimPrefix(string(output), `\`), " ")
	if digest != content.Digest() {
		return fleet.Errorf(fleet.KindTemporary, "what arrived has the digest %.64q, not %s", digest, content.Digest())
	}
	return nil
}

func suffix() string {
	random := make([]byte, 6)
	_, _ = io.ReadFull(rand.Reader, random) // never fails
	return hex.EncodeToString(random) + ".tmp"
}
