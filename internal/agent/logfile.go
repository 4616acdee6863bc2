package agent

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// maxLog is the size that the log file is kept under, in bytes.
const maxLog = 1 << 20

// logPath is where the agent logs on its host.
func logPath(root string) string { return filepath.Join(root, "var/log/ironherd-agent.log") }

// logFile is an io.Writer that appends to a file of bounded size: when it is full, its newer half
// is kept. The file is open only while it is written to, because lines are rare and agents may be
// many.
type logFile struct {
	path string
	mu   sync.Mutex
}

// Write implements io.Writer. The rest of the agent does not depend on it.
func (l *logFile) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	file, err := openLog(l.path)
	if err != nil {
		return 0, err
	}
	info, err := file.Stat()
	if err == nil && info.Size()+int64(len(line)) > maxLog {
		err = halve(file, info.Size())
	}
	if err == nil {
		_, err = file.Write(line)
	}
	return len(line), errors.Join(err, file.Close())
}

// openLog opens the log to append to it. Where others may write to its directory, as syslog may on
// Ubuntu, they may have put a link or a pipe there: it refuses what is not this user's own file.
func openLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	var stat syscall.Stat_t
	if err := syscall.Fstat(int(file.Fd()), &stat); err != nil || stat.Mode&syscall.S_IFMT != syscall.S_IFREG || stat.Nlink != 1 || int(stat.Uid) != os.Geteuid() {
		return nil, errors.Join(errors.New(path+" is not a file of ours alone"), file.Close())
	}
	return file, nil
}

// halve keeps the whole lines of the newer half of the file.
func halve(file *os.File, size int64) error {
	tail, err := io.ReadAll(io.NewSectionReader(file, max(0, size-maxLog/2), maxLog/2))
	if err != nil {
		return err
	}
	if _, whole, ok := bytes.Cut(tail, []byte("\n")); ok {
		tail = whole
	}
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err = file.Write(tail)
	return err
}

// newLogger logs to the host's log file.
func newLogger(root string) *slog.Logger {
	return slog.New(slog.NewTextHandler(&logFile{path: logPath(root)}, nil))
}
