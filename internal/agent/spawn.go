package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// startLimit is how long a started agent may take to be ready.
	startLimit = 10 * time.Second
	// readyWord is what a started agent writes when it is in charge. Anything else that it writes is
	// what went wrong, in one sentence.
	readyWord = "ready"
	// readyFD is the file descriptor that a started agent writes to, and givenFD that of the file
	// that it is given besides.
	readyFD = 3
	givenFD = 4
)

// startProcess starts a command of this executable (run, jump) as a process of its own, out of
// reach of the session that started it, and returns when it is ready. given is open in it as
// givenFD; nil: nothing is. When it fails it has killed the process.
func startProcess(ctx context.Context, env Env, given *os.File, command string, further ...string) error {
	ready, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = ready.Close() }()
	log, err := openLog(logPath(env.Root))
	if err != nil {
		_, _ = fmt.Fprintf(env.Stderr, "ironherd-agent: no log is kept: %s\n", err)
	}
	defer func() { _ = log.Close() }()
	// Not CommandContext, because the process outlives this one. Not by path, because that may hold
	// another version by now.
	args := append([]string{command, fmt.Sprintf("--ready-fd=%d", readyFD)}, further...)
	process := exec.Command("/proc/self/exe", args...) //nolint:noctx // see above
	process.Args[0] = "ironherd-agent"
	process.Dir = "/"
	if log != nil {
		process.Stderr = log // for a panic; it has no other output
	}
	process.ExtraFiles = []*os.File{theirs}
	if given != nil {
		process.ExtraFiles = append(process.ExtraFiles, given)
	}
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = process.Start()
	_ = theirs.Close()
	if err != nil {
		return err
	}
	if err := awaitReady(ctx, ready); err != nil {
		_ = process.Process.Kill()
		_ = process.Wait()
		return err
	}
	return process.Process.Release()
}

// awaitReady waits until the started process reports that it is ready, or why it is not.
func awaitReady(ctx context.Context, ready *os.File) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, errors.New("it is not ready in time"))
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Unix(1, 0)) })()
	outcome, err := io.ReadAll(io.LimitReader(ready, 1<<10))
	switch {
	case string(outcome) == readyWord:
		return nil
	case len(outcome) > 0:
		return errors.New(strings.ToValidUTF8(string(outcome), "?"))
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	}
	return errors.New("it ended at once; its log file, if it could keep one, says why")
}

// startInside starts Run inside this process, as the host of a simulation lets it go on, and
// returns when it is ready. When it fails it leaves nothing running.
func startInside(ctx context.Context, env Env) error {
	const starting, running, abandoned = 0, 1, 2
	var state atomic.Int32
	ended := make(chan error, 2)
	env.Detach(func(ctx context.Context) {
		options := env.options()
		options.Ready = func() error {
			if !state.CompareAndSwap(starting, running) {
				return errors.New("nobody waits for the agent any more")
			}
			ended <- nil
			return nil
		}
		err := Run(ctx, options)
		if err == nil {
			err = errors.New("it ended at once")
		}
		ended <- err
	})
	timer := time.NewTimer(startLimit)
	defer timer.Stop()
	var err error
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
		err = errors.New("it is not ready in time")
	}
	if state.CompareAndSwap(starting, abandoned) {
		return err
	}
	return nil
}

// reportReady tells the process that started this one how the start went: readyWord, or what went
// wrong.
func reportReady(fd int, outcome string) error {
	file := os.NewFile(uintptr(fd), "ready")
	if file == nil {
		return fmt.Errorf("file descriptor %d is not open", fd)
	}
	_, err := file.WriteString(outcome)
	return errors.Join(err, file.Close())
}
