package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// monitor is QEMU's own interface (QMP): JSON messages, one a line, over a Unix socket. One command
// is under way at a time.
type monitor struct {
	mu     sync.Mutex
	conn   net.Conn
	reader *bufio.Reader
	// last is the number of the last command. The answer to one that was not awaited comes later.
	last int
	// begun is the part of a line that has arrived.
	begun []byte
}

// commandLimit bounds a command.
const commandLimit = 20 * time.Second

// answer is a message of QEMU: of the answer to a command, or of an event.
type answer struct {
	// ID is that of the command; 0: QEMU could not read one.
	ID     int             `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Event string `json:"event"`
}

// dialMonitor connects as soon as QEMU listens.
func dialMonitor(ctx context.Context, path string, ended <-chan struct{}) (*monitor, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, commandLimit, errors.New("QEMU does not listen"))
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil {
			q := &monitor{conn: conn, reader: bufio.NewReader(conn)}
			return q, q.execute(ctx, "qmp_capabilities", nil)
		}
		select {
		case <-ticker.C:
		case <-ended:
			return nil, errors.New("QEMU ended at once")
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// execute runs a command and waits for its answer.
func (q *monitor) execute(ctx context.Context, command string, arguments map[string]any) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	deadline := time.Now().Add(commandLimit)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := q.conn.SetDeadline(deadline); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	q.last++
	request := map[string]any{"execute": command, "id": q.last}
	if arguments != nil {
		request["arguments"] = arguments
	}
	data, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	if _, err := q.conn.Write(append(data, '\n')); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	for {
		line, err := q.reader.ReadBytes('\n')
		line, q.begun = append(q.begun, line...), nil
		if err != nil {
			q.begun = line
			return fmt.Errorf("%s: %w", command, err)
		}
		var a answer
		if err := json.Unmarshal(line, &a); err != nil {
			return fmt.Errorf("%s: %w", command, err)
		}
		switch {
		case a.ID != 0 && a.ID != q.last: // of a command that was not waited for to its end
		case a.Error != nil:
			return fmt.Errorf("%s: %s", command, a.Error.Desc)
		case a.Return != nil:
			return nil
		}
	}
}

func (q *monitor) close() { _ = q.conn.Close() }
