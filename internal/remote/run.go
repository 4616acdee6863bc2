package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shell"
)

// defaultOutputLimit is how much a command may write to its standard output, in bytes.
const defaultOutputLimit = 1 << 20

// stderrLineLimit is where a line on standard error is cut, in bytes.
const stderrLineLimit = 4 << 10

// stderrLimit is how much a command may write to its standard error, in bytes, and stderrLines how
// many lines of it are told.
const (
	stderrLimit = 1 << 20
	stderrLines = 200
)

// Command is what Run executes.
type Command struct {
	// Args are the program and its arguments. Run quotes them for the host's shell, so that each
	// reaches the program as it is.
	Args []string
	// Stdin is what the command reads. Nil: nothing. Run may return while it still reads from Stdin.
	Stdin io.Reader
	// OutputLimit bounds standard output, in bytes. Zero: one MiB. Run fails when a command
	// writes more.
	OutputLimit int
	// OnStderr is called with each line on standard error, without its end and cut at 4 KiB, from one
	// goroutine at a time, and not for more than 200 lines. Nil: Run logs the lines. Run fails when a
	// command writes more than 1 MiB.
	OnStderr func(line string)
	// Timeout bounds the command. Zero: the dialer's StepTimeout.
	Timeout time.Duration

	// reasonFirst tells that the first line on standard error has the reason of a failure, and not the
	// last.
	reasonFirst bool
}

// Run executes a command and returns what it wrote to standard output. It waits until the command
// has ended and closed its output. What the host itself wrote before the command, such as the
// greeting of a start-up file of the shell, is not part of that. If something else ran in the place
// of the command, the error says so: it is of kind Invalid, or an *ExitError.
//
// If the command ran and failed, the error holds an *ExitError, and Run returns the output as well.
// If it wrote too much, the error is of kind Invalid, and the connection is closed. When ctx or the
// time ends, Run closes the connection and fails with a timeout: the command may still be running.
func (h *Host) Run(ctx context.Context, command Command) ([]byte, error) {
	if len(command.Args) == 0 || command.Args[0] == "" {
		return nil, fleet.Errorf(fleet.KindInvalid, "a command needs a name")
	}
	what := "run " + shown(command.Args[0])
	// The shell gives its place to the command, so that a signal which ends the command is told.
	return h.line(ctx, what, "exec "+shellLine(command.Args), command)
}

// line runs one shell line within the time that the command has.
func (h *Host) line(ctx context.Context, what, line string, command Command) ([]byte, error) {
	limit := command.Timeout
	if limit <= 0 {
		limit = h.step
	}
	var output []byte
	err := h.within(ctx, limit, what, func() (err error) {
		output, err = h.execute(line, command)
		return err
	})
	if _, exited := errors.AsType[*ExitError](err); err != nil && !exited {
		return nil, err // the command may still be writing
	}
	return output, err
}

// execute runs one shell line.
func (h *Host) execute(line string, command Command) ([]byte, error) {
	session, err := h.openSession()
	if err != nil {
		return nil, fleet.Errorf(fleet.KindTemporary, "open session: %w", said{err})
	}
	defer func() { _ = session.Close() }()

	limit := command.OutputLimit
	if limit <= 0 {
		limit = defaultOutputLimit
	}
	// The host may go on writing, whatever happens to the session: only the end of the connection
	// ends that.
	full := func() { _ = h.link.Close() }
	// What no host writes by itself: the shell is told to write it just before the command.
	mark := "ironherd-" + rand.Text()
	stdout := &framedBuffer{mark: []byte(mark + "\n"), answer: limitedBuffer{limit: limit, full: full}, full: full}
	stderr := &lineWriter{emit: command.OnStderr, limit: stderrLimit, full: full}
	if stderr.emit == nil {
		stderr.emit = func(text string) {
			h.logger.Info("command wrote to stderr", slog.Any("host", h.address), slog.String("line", text))
		}
	}
	// Every shell there is takes this line, and the simulator's, too.
	err = session.run("echo "+mark+"; "+line, command.Stdin, stdout, stderr)
	stderr.flush()
	stdout.flush()
	reason := stderr.last
	if command.reasonFirst {
		reason = stderr.first
	}
	switch {
	case stdout.exceeded:
		return nil, fleet.Errorf(fleet.KindInvalid, "the host wrote more than %d bytes to standard output before the command, beginning with %s (%s)",
			noiseLimit, Quote(string(stdout.noise)), hintOtherCommand)
	case stdout.answer.exceeded:
		return nil, fleet.Errorf(fleet.KindInvalid, "the command wrote more than %d bytes to standard output, beginning with %s",
			limit, Quote(stdout.answer.begin()))
	case stderr.exceeded && !stdout.found:
		return nil, fleet.Errorf(fleet.KindInvalid, "the host wrote more than %d bytes to standard error before the command, in the end %s (%s)",
			stderrLimit, Quote(stderr.last), hintOtherCommand)
	case stderr.exceeded:
		return nil, fleet.Errorf(fleet.KindInvalid, "the command wrote more than %d bytes to standard error, in the end %s",
			stderrLimit, Quote(stderr.last))
	}
	if !stdout.found {
		if err = exitError(err, reason, string(stdout.noise)); err == nil {
			return nil, &noiseError{fleet.Errorf(fleet.KindInvalid, "the host wrote %s in the place of an answer (%s)", Quote(string(stdout.noise)), hintOtherCommand)}
		}
		if exit, exited := errors.AsType[*ExitError](err); exited {
			exit.other = true
		}
		return nil, err
	}
	return stdout.answer.kept.Bytes(), exitError(err, reason, stdout.answer.begin())
}

func startError(err error) error {
	return fleet.Errorf(fleet.KindTemporary, "the host did not start the command: %w", said{err})
}

// exitError completes the error of a command with its last line on standard error and the beginning
// of its standard output.
func exitError(err error, lastLine, output string) error {
	var exit *ExitError
	switch {
	case errors.As(err, &exit):
		exit.Stderr, exit.Stdout = lastLine, output
	case errors.Is(err, errNoExit):
		// This is how a command ends when the connection breaks. A host may also end a command without a
		// word; that is rarer, and tells as little.
		return fleet.Errorf(fleet.KindTemporary, "the connection ended before the command did: %w", err)
	}
	return err
}

// shellLine renders arguments as one line for a POSIX shell.
func shellLine(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = shell.Word(arg)
	}
	return strings.Join(words, " ")
}

// noiseLimit is how much a host may write to standard output before a command, in bytes.
const noiseLimit = 4 << 20

// framedBuffer keeps what follows the first mark, and the beginning of what comes before. It calls
// full once when there is too much before the mark.
type framedBuffer struct {
	mark     []byte
	found    bool
	answer   limitedBuffer
	exceeded bool
	full     func()
	// noise is the beginning of what came before the mark, and skipped is how much that was. tail is
	// the end of it, which may be the beginning of the mark.
	noise, tail []byte
	skipped     int
}

// Write keeps p, or fails if p is beyond a limit.
func (b *framedBuffer) Write(p []byte) (int, error) {
	if b.found {
		return b.answer.Write(p)
	}
	pending := append(b.tail, p...)
	before, after, found := bytes.Cut(pending, b.mark)
	if b.found = found; !found {
		before = pending[:max(0, len(pending)-len(b.mark)+1)]
	}
	b.skipped += len(before)
	// Without the mark, what is in the tail is noise, too.
	if shown := pending[:len(before)]; len(b.noise) < 2*wordsLimit {
		b.noise = append(b.noise, shown[:min(len(shown), 2*wordsLimit-len(b.noise))]...)
	}
	if b.skipped > noiseLimit {
		if !b.exceeded {
			b.exceeded = true
			b.full()
		}
		return 0, io.ErrShortWrite
	}
	b.tail = bytes.Clone(pending[len(before):])
	if !found {
		return len(p), nil
	}
	b.tail = nil
	if _, err := b.answer.Write(after); err != nil {
		return 0, err
	}
	return len(p), nil
}

// flush makes noise of the tail: no more comes.
func (b *framedBuffer) flush() {
	if room := 2*wordsLimit - len(b.noise); !b.found && room > 0 {
		b.noise = append(b.noise, b.tail[:min(len(b.tail), room)]...)
	}
}

// limitedBuffer keeps up to limit bytes, and calls full once when more come. It does not embed the
// buffer, because io.Copy would then use the buffer's ReadFrom, which knows no limit.
type limitedBuffer struct {
	kept     bytes.Buffer
	limit    int
	exceeded bool
	full     func()
}

// Write keeps p, or fails if p is beyond the limit.
func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.kept.Len()+len(p) > b.limit {
		if !b.exceeded {
			b.exceeded = true
			b.full()
		}
		return 0, io.ErrShortWrite
	}
	return b.kept.Write(p)
}

// begin returns the beginning of what was kept, as much as is worth quoting.
func (b *limitedBuffer) begin() string {
	return string(b.kept.Bytes()[:min(b.kept.Len(), 2*wordsLimit)])
}

// lineWriter calls emit with the lines of a stream, up to stderrLines of them, and calls full once
// when the stream is longer than limit.
type lineWriter struct {
	emit     func(string)
	limit    int
	full     func()
	written  int
	exceeded bool
	pending  []byte
	lines    int
	// first and last are the first and the last line.
	first, last string
}

// Write emits every line that p completes, or fails if p is beyond the limit.
func (w *lineWriter) Write(p []byte) (int, error) {
	written := len(p)
	if w.written += written; w.written > w.limit {
		if !w.exceeded {
			w.exceeded = true
			w.full()
		}
		return 0, io.ErrShortWrite
	}
	for len(p) > 0 {
		line, rest, complete := bytes.Cut(p, []byte{'\n'})
		if room := stderrLineLimit - len(w.pending); len(line) > room {
			line = line[:max(room, 0)]
		}
		w.pending = append(w.pending, line...)
		if complete {
			w.flush()
		}
		p = rest
	}
	return written, nil
}

func (w *lineWriter) flush() {
	line := strings.ToValidUTF8(strings.TrimRight(string(w.pending), "\r"), "�")
	w.pending = w.pending[:0]
	if line != "" {
		if w.last = line; w.first == "" {
			w.first = line
		}
		if w.lines++; w.lines <= stderrLines {
			w.emit(line)
		}
	}
}

// noiseError says what the host wrote in the place of an answer.
type noiseError struct{ err error }

func (e *noiseError) Error() string { return e.err.Error() }
func (e *noiseError) Unwrap() error { return e.err }
