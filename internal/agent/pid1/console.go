package pid1

import (
	"bytes"
	"os"
	"sync"
)

// maxKept is how much of the log is kept in memory, in bytes; maxLine how much of a line the kernel
// takes.
const (
	maxKept = 64 << 10
	maxLine = 900
)

// Console writes a log through the kernel's own, which reaches every console of the machine and
// needs no memory of ours, and keeps the newest lines.
type Console struct {
	mu     sync.Mutex
	kernel *os.File
	kept   []byte
}

// OpenConsole opens the kernel's log. Without one the lines go to standard error, which is the
// console of the first process.
func OpenConsole() *Console {
	file, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		return &Console{kernel: os.Stderr}
	}
	return &Console{kernel: file}
}

// Write takes whole lines. It never fails.
func (c *Console) Write(lines []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for line := range bytes.SplitSeq(bytes.TrimSuffix(lines, []byte("\n")), []byte("\n")) {
		if len(line) > maxLine {
			line = line[:maxLine]
		}
		_, _ = c.kernel.WriteString("<5>ironherd-agent: " + string(line) + "\n")
	}
	c.kept = append(c.kept, lines...)
	if over := len(c.kept) - maxKept; over > 0 {
		c.kept = append([]byte(nil), tail(c.kept, maxKept/2)...)
	}
	return len(lines), nil
}

// Kept returns the newest lines, at most limit bytes of them.
func (c *Console) Kept(limit int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(tail(c.kept, limit))
}

// tail returns the whole lines at the end of a text.
func tail(text []byte, limit int) []byte {
	if len(text) <= limit {
		return text
	}
	text = text[len(text)-limit:]
	if _, whole, ok := bytes.Cut(text, []byte("\n")); ok {
		return whole
	}
	return text
}
