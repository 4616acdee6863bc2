package sshhost

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

// Program is an executable file of the machine, to be run.
type Program struct {
	// Path is the file's name on the machine, File where it is in the simulator.
	Path, File string
	// Args are its arguments, without its name.
	Args           []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Signals gets the names of signals that the client sends ("TERM"). It is never closed.
	Signals <-chan string
}

// Status is how a command has ended.
type Status struct {
	// Code is the exit code, unless Signal is set.
	Code int
	// Signal is the name of the signal that killed it ("TERM"), or empty.
	Signal string
}

// serveSession serves one session channel: at most one command or subsystem.
func (s *Server) serveSession(power context.Context, channel ssh.Channel, requests <-chan *ssh.Request) {
	defer func() { _ = channel.Close() }()
	signals := make(chan string, 8)
	started := false
	for request := range requests {
		ok := false
		switch request.Type {
		case "env":
			ok = true
		case "signal":
			var payload struct{ Name string }
			if ssh.Unmarshal(request.Payload, &payload) == nil {
				select {
				case signals <- payload.Name:
				default: // more signals than anyone looks at
				}
				ok = true
			}
		case "exec", "subsystem":
			var payload struct{ Text string }
			if started || ssh.Unmarshal(request.Payload, &payload) != nil {
				break
			}
			if request.Type == "subsystem" && payload.Text != "sftp" {
				break
			}
			ok, started = true, true
			// The reply goes first: a client may wait for it before it sends the command's input.
			if request.WantReply {
				_ = request.Reply(true, nil)
				request.WantReply = false
			}
			run := func() { s.runCommand(power, channel, payload.Text, signals) }
			if request.Type == "subsystem" {
				run = func() { s.serveFiles(channel) }
			}
			s.tasks.Go(run)
		}
		if request.WantReply {
			_ = request.Reply(ok, nil)
		}
	}
}

// runCommand runs a command line and reports how it ended.
func (s *Server) runCommand(power context.Context, channel ssh.Channel, line string, signals <-chan string) {
	defer func() { _ = channel.Close() }()
	status := s.execute(power, line, streams{channel, channel, channel.Stderr()}, signals)
	_ = channel.CloseWrite()
	if status.Signal != "" {
		_, _ = channel.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Signal     string
			CoreDumped bool
			Message    string
			Language   string
		}{Signal: status.Signal}))
		return
	}
	_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(status.Code)}))
}

// execute runs a command line. It does not end with the connection: as with any SSH server, a
// program goes on without its client until it notices; it ends with the machine's power.
func (s *Server) execute(power context.Context, line string, io streams, signals <-chan string) Status {
	files, err := openFiles(s.options.Root, s.options.Store, s.options.Observer)
	if err != nil {
		return fail(io, exitFailure, "sh: %v", err)
	}
	defer files.close()
	script, err := parse(line)
	if err != nil {
		return fail(io, exitUsage, "sh: %v", err)
	}
	sh := &shell{options: &s.options, files: files, signals: signals}
	return sh.run(power, script, io)
}

// serveFiles serves SFTP.
func (s *Server) serveFiles(channel ssh.Channel) {
	defer func() { _ = channel.Close() }()
	files, err := openFiles(s.options.Root, s.options.Store, s.options.Observer)
	if err != nil {
		s.options.Logger.Warn("machine cannot serve files", slog.String("root", s.options.Root), slog.Any("err", err))
		return
	}
	defer files.close()
	handler := &fileHandler{files}
	server := sftp.NewRequestServer(channel, sftp.Handlers{FileGet: handler, FilePut: handler, FileCmd: handler, FileList: handler},
		sftp.WithStartDirectory("/root"), sftp.WithRSAllocator())
	err = server.Serve()
	_ = server.Close()
	code := uint32(0)
	if err != nil && !errors.Is(err, io.EOF) {
		code = 1
	}
	_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{code}))
}
