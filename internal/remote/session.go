package remote

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"golang.org/x/crypto/ssh"
)

// errNoExit tells that the host closed a session without saying how its command ended.
var errNoExit = errors.New("the host did not say how the command ended")

// errRefused tells that the host did not do what a request asked for.
var errRefused = errors.New("it refuses the request")

// session is one session channel of a connection: a command, or a subsystem.
//
// It does what the library's own Session does, with one difference: it receives the requests of the
// channel until the channel is closed, whatever they hold. The library stops at a malformed one.
// The requests after that fill the channel's queue, and then the goroutine that reads the
// connection waits for ever.
type session struct {
	ssh.Channel
	// ended receives once, when the channel is closed: nil, an *ExitError, or errNoExit.
	ended chan error
}

func (h *Host) openSession() (*session, error) {
	channel, requests, err := h.client.OpenChannel("session", nil)
	if err != nil {
		return nil, err
	}
	s := &session{Channel: channel, ended: make(chan error, 1)}
	go func() { s.ended <- receiveExit(requests) }()
	return s, nil
}

// start sends the request that starts a command ("exec") or a subsystem, and waits for the reply.
func (s *session) start(request, name string) error {
	accepted, err := s.SendRequest(request, true, ssh.Marshal(struct{ Name string }{name}))
	if err == nil && !accepted {
		err = errRefused
	}
	return err
}

// run executes a shell line and waits until it has ended and closed its output. It returns the
// error of ended, or else that of reading the output.
func (s *session) run(line string, stdin io.Reader, stdout, stderr io.Writer) error {
	if err := s.start("exec", line); err != nil {
		return startError(err)
	}
	go func() {
		// The exit status of the command tells whether it read what it needed.
		if stdin != nil {
			_, _ = io.Copy(s, stdin)
		}
		_ = s.CloseWrite()
	}()
	var outputs sync.WaitGroup
	var outErr, errErr error
	outputs.Go(func() { _, outErr = io.Copy(stdout, s) })
	outputs.Go(func() { _, errErr = io.Copy(stderr, s.Stderr()) })
	err := <-s.ended
	outputs.Wait()
	if err == nil {
		err = errors.Join(outErr, errErr)
	}
	return err
}

// receiveExit receives the requests of a session until it is closed, and returns how the command
// ended.
func receiveExit(requests <-chan *ssh.Request) error {
	err := errNoExit
	for request := range requests {
		switch request.Type {
		case "exit-status": // RFC 4254, section 6.10, as the next one
			if len(request.Payload) == 4 {
				err = exitStatus(binary.BigEndian.Uint32(request.Payload))
			}
		case "exit-signal":
			var exit struct {
				Signal     string
				CoreDumped bool
				Message    string
				Language   string
			}
			if ssh.Unmarshal(request.Payload, &exit) == nil {
				err = &ExitError{Status: -1, Signal: exit.Signal}
			}
		default:
			_ = request.Reply(false, nil) // a keepalive, for instance
		}
	}
	return err
}

func exitStatus(status uint32) error {
	if status == 0 {
		return nil
	}
	return &ExitError{Status: int(status)}
}

// input is the standard input of a session: closing it ends the input, and not the session.
type input struct{ *session }

// Close ends the input.
func (i input) Close() error { return i.CloseWrite() }
