package sshhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// Exit codes of a shell.
const (
	exitFailure       = 1
	exitUsage         = 2
	exitNotExecutable = 126
	exitNotFound      = 127
)

// streams are a command's standard streams.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// shell runs the commands of one line.
type shell struct {
	options *Options
	files   *files
	signals <-chan string
}

// builtin is a program that the server plays. The error, if any, is its message; it makes the exit
// code 1 unless the status says another.
type builtin func(sh *shell, args []string, io streams) (Status, error)

// builtinNamed returns the program of that name, or nil.
func builtinNamed(name string) builtin {
	switch name {
	case "true", ":", "sync", "umask":
		return func(*shell, []string, streams) (Status, error) { return Status{}, nil }
	case "false":
		return func(*shell, []string, streams) (Status, error) { return Status{Code: exitFailure}, nil }
	case "echo":
		return echo
	case "cat":
		return cat
	case "sha256sum":
		return sha256sum
	case "gzip":
		return gunzip
	case "mkdir":
		return mkdir
	case "chmod":
		return chmod
	case "mv":
		return move
	case "rm":
		return remove
	case "test", "[":
		return test
	case "uname":
		return uname
	case "hostname":
		return hostname
	case "id":
		return id
	case "reboot":
		return reboot
	}
	return nil
}

// fail writes a message and returns the code as a status.
func fail(io streams, code int, format string, args ...any) Status {
	_, _ = fmt.Fprintf(io.err, format+"\n", args...)
	return Status{Code: code}
}

// run runs a script and returns how its last command ended.
func (sh *shell) run(power context.Context, script []command, io streams) Status {
	last := Status{}
	for _, c := range script {
		ok := last == Status{}
		if c.join == "&&" && !ok || c.join == "||" && ok {
			continue
		}
		last = sh.command(power, c, io)
		if power.Err() != nil || last.Signal != "" {
			return last
		}
	}
	return last
}

func (sh *shell) command(power context.Context, c command, io streams) Status {
	var closers []func() error
	for _, r := range c.redirects {
		closer, err := sh.redirect(&io, r)
		if err != nil {
			return fail(io, exitUsage, "sh: cannot open %s: %v", r.target, plain(err))
		}
		closers = append(closers, closer)
	}
	status := sh.start(power, c.words, io)
	for _, closer := range closers {
		if err := closer(); err != nil {
			status = fail(io, exitFailure, "sh: %v", plain(err))
		}
	}
	return status
}

func (sh *shell) redirect(io *streams, r redirect) (closer func() error, err error) {
	nothing := func() error { return nil }
	if r.same {
		if r.target == "1" {
			io.err = io.out
		} else {
			io.out = io.err
		}
		return nothing, nil
	}
	if r.target == "/dev/null" {
		switch r.stream {
		case 0:
			io.in = strings.NewReader("")
		case 1:
			io.out = discard{}
		default:
			io.err = discard{}
		}
		return nothing, nil
	}
	if r.stream == 0 {
		file, err := sh.files.open(r.target)
		if err != nil {
			return nil, err
		}
		io.in = file
		return file.Close, nil
	}
	file, err := sh.files.create(r.target, 0o644, r.append)
	if err != nil {
		return nil, err
	}
	if r.stream == 1 {
		io.out = file
	} else {
		io.err = file
	}
	return file.Close, nil
}

// discard is /dev/null.
type discard struct{}

// Write takes everything.
func (discard) Write(p []byte) (int, error) { return len(p), nil }

func (sh *shell) start(power context.Context, words []string, io streams) Status {
	if words[0] == "exec" && len(words) > 1 {
		words = words[1:] // nothing is left of the shell that could show the difference
	}
	name := words[0]
	if play := builtinNamed(path.Base(name)); play != nil && (!strings.Contains(name, "/") || isSystemPath(name)) {
		status, err := play(sh, words[1:], io)
		if err != nil {
			status.Code = max(status.Code, exitFailure)
			return fail(io, status.Code, "%s: %v", path.Base(name), plain(err))
		}
		return status
	}
	if !strings.Contains(name, "/") {
		return fail(io, exitNotFound, "sh: 1: %s: not found", name)
	}
	info, err := sh.files.stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail(io, exitNotFound, "sh: 1: %s: not found", name)
	case err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fail(io, exitNotExecutable, "sh: 1: %s: Permission denied", name)
	case info.Size() == 0:
		return Status{} // as a shell does with an empty script
	}
	if !path.IsAbs(name) {
		name = path.Join("/root", name)
	}
	return sh.options.Execute(power, Program{
		Path: name, File: sh.files.outside(name), Args: words[1:],
		Stdin: io.in, Stdout: io.out, Stderr: io.err, Signals: sh.signals,
	})
}

func isSystemPath(name string) bool {
	dir := path.Dir(name)
	return dir == "/bin" || dir == "/usr/bin" || dir == "/sbin" || dir == "/usr/sbin"
}

// plain takes the operation and the path in the simulator off a file system's error.
func plain(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}
