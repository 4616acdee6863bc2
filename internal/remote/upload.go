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

// Uploaded is the result of an upload.
type Uploaded struct {
	// Path of the content on the host.
	Path string
	// Sent is how many bytes went over the wire, after compression. 0 when the host had the content
	// already.
	Sent int64
}

// Upload makes sure that the content is on the host, at content.Path(base), with that mode. base is
// an absolute path, whose directory exists.
//
// If a file of the right size is there, it is that very content, because its name has the digest in
// it and only a whole file gets that name. Otherwise Upload sends the content, compressed if the
// host has gzip, to a temporary name of its own, checks it and renames it. So any number of uploads
// may run at once.
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
			_ = files.Remove(temporary) // a file that stays is harmless: nothing looks for its name
			return err
		}
		return nil
	})
	if err != nil {
		return Uploaded{}, err
	}
	return result, nil
}

// present reports whether the file is there with the right size and mode. It corrects a wrong mode.
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

// verify compares the size and, if the host has sha256sum, the digest. Otherwise the size is
// enough, because SSH and gzip both check what they carry.
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
	// sha256sum escapes a name with a backslash, and begins the line with a backslash then.
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
