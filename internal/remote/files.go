package remote

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/pkg/sftp"

	"github.com/ironherd/ironherd/internal/fleet"
)

// errNoFiles tells that the host has no SFTP that works. Its commands may work all the same.
type errNoFiles struct{ error }

// Unwrap returns the reason.
func (e errNoFiles) Unwrap() error { return e.error }

// openDisk returns the files of the host: over SFTP, or else by commands.
func (h *Host) openDisk(ctx context.Context) (disk, error) {
	files, err := h.fileClient(ctx)
	if reason, without := errors.AsType[errNoFiles](err); without {
		h.logger.InfoContext(ctx, "host has no SFTP that works, and gets files through its shell",
			slog.Any("host", h.address), slog.Any("err", reason))
		return shellDisk{h}, nil
	}
	if err != nil {
		return nil, err
	}
	return &sftpDisk{host: h, files: files}, nil
}

// fileClient returns the SFTP client of this connection, which it opens when first needed.
func (h *Host) fileClient(ctx context.Context) (*sftp.Client, error) {
	var client *sftp.Client
	err := h.within(ctx, h.step, "open SFTP", func() (err error) {
		h.files.Lock()
		defer h.files.Unlock()
		if h.sftp == nil {
			h.sftp, err = h.openFiles()
		}
		client = h.sftp
		return err
	})
	if err != nil {
		return nil, err
	}
	return client, nil
}

func (h *Host) openFiles() (*sftp.Client, error) {
	session, err := h.openSession()
	if err != nil {
		return nil, err
	}
	if err = session.start("subsystem", "sftp"); err != nil {
		_ = session.Close()
		if errors.Is(err, errRefused) {
			return nil, errNoFiles{fleet.Errorf(fleet.KindUnsupported, "the host has no subsystem of that name")}
		}
		return nil, err
	}
	// Standard error shares the channel's window: unread, it would stop everything.
	stderr := &lineWriter{emit: func(string) {}, limit: stderrLimit, full: func() { _ = h.link.Close() }}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(stderr, session.Stderr())
		stderr.flush()
	}()
	stdout := &greeting{Reader: bufio.NewReader(session)}
	client, err := sftp.NewClientPipe(stdout, input{session})
	if err == nil {
		return client, nil
	}
	_ = session.Close()
	switch {
	case stdout.noise != "":
		return nil, errNoFiles{fleet.Errorf(fleet.KindInvalid, "the host wrote %s in its place", Quote(stdout.noise))}
	case !settled(drained):
	case stderr.exceeded:
		return nil, fleet.Errorf(fleet.KindInvalid, "the host wrote more than %d bytes to standard error, in the end %s (%s)",
			stderrLimit, Quote(stderr.last), hintOtherCommand)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case end := <-session.ended:
		exit, exited := errors.AsType[*ExitError](end)
		switch {
		case exited:
			exit.Stderr = stderr.last
			return nil, errNoFiles{fleet.Errorf(fleet.KindUnsupported, "%v", exit)}
		case end == nil:
			return nil, errNoFiles{fleet.Errorf(fleet.KindUnsupported, "it ended at once")}
		case stderr.last != "":
			return nil, errNoFiles{fleet.Errorf(fleet.KindUnsupported, "the host said %s", Quote(stderr.last))}
		}
	case <-timer.C:
	}
	return nil, err
}

// errNoise tells that what arrives is not SFTP.
var errNoise = errors.New("the host wrote something else than SFTP")

// greeting is what an SFTP server writes. It fails where that begins with something else: taken for
// the length of a packet, words would have the library wait for what never comes.
type greeting struct {
	*bufio.Reader
	begun bool
	// noise is what came in the place of SFTP.
	noise string
}

// Read reads.
func (g *greeting) Read(p []byte) (int, error) {
	if !g.begun {
		g.begun = true
		// A packet begins with its length, the highest byte first, and all are shorter than 16 MiB.
		if first, err := g.Peek(1); err == nil && first[0] != 0 {
			noise, _ := g.Peek(g.Buffered()) // it is there
			g.noise = string(noise)
			return 0, errNoise
		}
	}
	return g.Reader.Read(p)
}
