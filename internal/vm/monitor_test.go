package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// peer is QEMU's side of a monitor.
type peer struct {
	t    *testing.T
	conn net.Conn
	// lines are what it is told.
	lines *bufio.Scanner
}

// command returns the number of the next command, which must be that one.
func (p *peer) command(want string) (id int) {
	p.t.Helper()
	var got struct {
		Execute string `json:"execute"`
		ID      int    `json:"id"`
	}
	if !p.lines.Scan() || json.Unmarshal(p.lines.Bytes(), &got) != nil || got.Execute != want || got.ID == 0 {
		p.t.Errorf("QEMU is told %q, %v, want %s", p.lines.Text(), p.lines.Err(), want)
	}
	return got.ID
}

func (p *peer) say(format string, arguments ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.conn, format, arguments...); err != nil {
		p.t.Error(err)
	}
}

// An answer that comes when nobody waits for it any more is none to the next command, also where it
// has come in part before.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int{"all of it": 0, "the rest of it": 9} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				q, p := &monitor{conn: ours, reader: bufio.NewReader(ours)}, &peer{t, theirs, bufio.NewScanner(theirs)}
				defer q.close()
				go func() {
					late := fmt.Sprintf("{\"return\": {}, \"id\": %d}\r\n", p.command("stop"))
					p.say("%s", late[:before])
					time.Sleep(commandLimit + time.Second)
					id := p.command("cont")
					p.say("%s", late[before:])
					p.say("{\"event\": \"STOP\"}\r\n")
					p.say("{\"id\": %d, \"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}}\r\n", id)
					p.say("{\"return\": {}, \"id\": %d}\r\n", p.command("system_reset"))
				}()
				if err := q.execute(t.Context(), "stop", nil); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("QEMU does not answer: %v", err)
				}
				if err := q.execute(t.Context(), "cont", nil); err == nil || err.Error() != "cont: no" {
					t.Errorf("QEMU refuses: %v", err)
				}
				if err := q.execute(t.Context(), "system_reset", nil); err != nil {
					t.Errorf("QEMU obeys: %v", err)
				}
			})
		})
	}
}

// A command that QEMU could not read has no number in its answer.
func TestUnreadCommand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		q, p := &monitor{conn: ours, reader: bufio.NewReader(ours)}, &peer{t, theirs, bufio.NewScanner(theirs)}
		defer q.close()
		go func() {
			p.command("stop")
			p.say("{\"error\": {\"class\": \"GenericError\", \"desc\": \"JSON parse error\"}}\r\n")
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.execute(ctx, "stop", nil); err == nil || err.Error() != "stop: JSON parse error" {
			t.Errorf("got %v", err)
		}
	})
}
