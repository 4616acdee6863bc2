package firstboot

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// Where things are kept, below the root.
const (
	stateDir = "var/lib/ironherd"
	dataFile = stateDir + "/first-boot"
	// begunFile is there from when the first-boot area was found, and has a mark of its install. The
	// other files are of that one.
	begunFile = stateDir + "/first-boot-begun"
	ranFile   = stateDir + "/first-boot-ran"
	doneFile  = stateDir + "/first-boot-done"
	// watchedFile is there while the control plane waits for further calls.
	watchedFile = stateDir + "/watched"
)

// defaultProgramLimit is how long first-boot data that is a program may take. Mostly the control
// plane has the machine restarted long before.
const defaultProgramLimit = time.Hour

// Options are the machine.
type Options struct {
	// Root is put before every path; "/" on a real machine.
	Root string
	// Version is what the control plane is told of this program.
	Version string
	Logger  *slog.Logger
	// Reload has sshd read its host keys again. Nil: nobody needs to be told.
	Reload func(ctx context.Context) error

	// programLimit is how long first-boot data that is a program may take; 0: defaultProgramLimit.
	programLimit time.Duration
}

// Run does everything, and returns when it is done. When ctx ends before, that is an error, but not
// for a system that only goes on calling.
func Run(ctx context.Context, options Options) error {
	done, watched := filepath.Join(options.Root, doneFile), filepath.Join(options.Root, watchedFile)
	begun := filepath.Join(options.Root, begunFile)
	before := isThere(done)
	installed := before || isThere(begun)
	area, anew, err := find(options, installed)
	if before && !anew && !isThere(watched) {
		options.Logger.Info("the first boot was done before")
		return nil
	}
	if err != nil {
		return err
	}
	if area == nil {
		disks := rootDisks(options.Root)
		if installed {
			return fmt.Errorf("the first-boot area that this system has begun with is on none of the disks of the root file system any more (%v): "+
				"it cannot tell the control plane that it is up", disks)
		}
		// The next boot looks again: an image may be booted, to be changed, before it is installed.
		options.Logger.Info("the disk of the root file system has no first-boot area for it: this system was not installed by a control plane",
			slog.Any("disks", disks))
		return nil
	}
	first, token := area.First, area.First.GetToken()
	options.Logger.Info("first-boot area found", slog.String("disk", area.disk),
		slog.Int64("install_generation", token.GetInstallGeneration()), slog.Int("attempt", int(token.GetAttempt())))
	if before && !anew {
		return goOnCalling(ctx, options, token, 0)
	}
	if anew {
		options.Logger.Info("this system came with the image of a later install: its first boot begins anew")
		if err := forget(options.Root); err != nil {
			return err
		}
	}
	// Where this fails, the system is up all the same. The disk says it last: a system that has said
	// nothing yet would not know its own area.
	err = writeFile(begun, []byte(area.mark), 0o600)
	if err == nil {
		err = area.Take(area.disk)
	}
	if err != nil {
		options.Logger.Error("that the first boot has begun cannot be recorded", slog.Any("err", err))
	}
	if err := takeHostKey(ctx, options, first.GetSshHostKey()); err != nil {
		return err
	}
	if err := takeData(ctx, options, first.GetData()); err != nil {
		return err
	}
	again, err := report(ctx, options, token)
	if err != nil {
		return err
	}
	options.Logger.Info("the control plane knows that this system is up")
	if again == 0 {
		return writeFile(done, nil, 0o600)
	}
	// The next boot goes on calling if it finds both.
	if err := errors.Join(writeFile(watched, nil, 0o600), writeFile(done, nil, 0o600)); err != nil {
		return err
	}
	return goOnCalling(ctx, options, token, again)
}

// forget removes what another install has left here. What says that it was another one goes last.
func forget(root string) error {
	for _, path := range []string{doneFile, watchedFile, ranFile, dataFile, dataFile + ".log", begunFile} {
		if err := os.Remove(filepath.Join(root, path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func isThere(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// goOnCalling calls after that time, and again and again as long as the control plane wants it, or
// until ctx ends.
func goOnCalling(ctx context.Context, options Options, token *agentv1.BootToken, after time.Duration) error {
	for {
		err := sleep(ctx, after*9/10+rand.N(after/5+1))
		if err == nil {
			after, err = report(ctx, options, token)
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // whoever ends it wants the system to end, and the next boot goes on
		}
		if err != nil {
			return err
		}
		if after == 0 {
			options.Logger.Info("the control plane does not wait for further calls")
			return os.Remove(filepath.Join(options.Root, watchedFile))
		}
	}
}

// sleep waits, unless ctx ends before.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// hostKeyFile is where sshd reads its Ed25519 host key.
const hostKeyFile = "etc/ssh/ssh_host_ed25519_key"

// takeHostKey makes the host key that the install has brought the system's own, and has sshd read
// it. It finishes what a run has begun that was cut short: each file is looked at by itself, and
// sshd is told in any case.
func takeHostKey(ctx context.Context, options Options, key *agentv1.SshHostKey) error {
	if key == nil {
		return nil
	}
	path := filepath.Join(options.Root, hostKeyFile)
	err := errors.Join(keepFile(path, key.GetPrivate(), 0o600), keepFile(path+".pub", []byte(key.GetPublic()+"\n"), 0o644))
	if err != nil {
		return fmt.Errorf("take the host key over: %w", err)
	}
	if options.Reload == nil {
		return nil
	}
	if err := options.Reload(ctx); err != nil {
		options.Logger.Error("sshd was not told of its host key", slog.Any("err", err))
	}
	return nil
}

// ReloadSSH has the sshd of a system with systemd read its host keys again.
func ReloadSSH(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	said, err := exec.CommandContext(ctx, "systemctl", "try-reload-or-restart", "ssh.service", "sshd.service").CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl: %w: %q", err, bytes.TrimSpace(said))
	}
	return nil
}

// takeData keeps the data, and starts it once where it is a program: one that is cut short is not
// started again, because it may be what restarts the machine.
func takeData(ctx context.Context, options Options, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	path, program := filepath.Join(options.Root, dataFile), bytes.HasPrefix(data, []byte("#!"))
	mode := os.FileMode(0o600)
	if program {
		mode = 0o700
	}
	if err := writeFile(path, data, mode); err != nil {
		return fmt.Errorf("keep the first-boot data: %w", err)
	}
	if !program {
		return nil
	}
	ran := filepath.Join(options.Root, ranFile)
	if was, err := os.ReadFile(ran); !errors.Is(err, fs.ErrNotExist) {
		if string(was) == started {
			options.Logger.Warn("the first-boot data is a program that was cut short; it is not started again")
		}
		return nil
	}
	if err := writeFile(ran, []byte(started), 0o600); err != nil {
		return fmt.Errorf("record that the first-boot data is started: %w", err)
	}
	err := runProgram(ctx, options, path)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		options.Logger.Error("the first-boot data is a program that failed", slog.Any("err", err))
	}
	return writeFile(ran, nil, 0o600)
}

// started is what is in ranFile until the program has ended.
const started = "started\n"

// runProgram runs the first-boot data, and kills it with what it has started when ctx ends, or it
// takes too long.
func runProgram(ctx context.Context, options Options, path string) error {
	limit := cmp.Or(options.programLimit, defaultProgramLimit)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it did not end within %s", limit))
	defer cancel()
	var output io.Writer
	// The output stays out of the log, because the data may hold secrets.
	if err := writeFile(path+".log", nil, 0o600); err != nil {
		options.Logger.Error("the output of the first-boot data cannot be kept", slog.Any("err", err))
	} else if log, err := os.OpenFile(path+".log", os.O_WRONLY|os.O_APPEND|unix.O_CLOEXEC, 0); err == nil {
		defer func() { _ = log.Close() }() // what a program says of itself is no reason to fail
		output = log
	}
	err := execute(ctx, options.Root, path, output)
	// A process that is being started meanwhile has what was open for writing until it executes.
	for tries := 1; errors.Is(err, unix.ETXTBSY) && tries < 100; tries++ {
		_ = sleep(ctx, 10*time.Millisecond)
		err = execute(ctx, options.Root, path, output)
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func execute(ctx context.Context, dir, path string, output io.Writer) error {
	cmd := exec.CommandContext(ctx, path)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	return cmd.Run()
}

// keepFile writes a file, unless it has that content.
func keepFile(path string, data []byte, mode os.FileMode) error {
	if was, err := os.ReadFile(path); err == nil && bytes.Equal(was, data) {
		return nil
	}
	return writeFile(path, data, mode)
}

// syncFile is (*os.File).Sync; a test watches when it is called.
var syncFile = (*os.File).Sync

// writeFile replaces a file as a whole, and durably.
func writeFile(path string, data []byte, mode os.FileMode) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // others may look, and see nothing
		return err
	}
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err := errors.Join(err, file.Chmod(mode), syncFile(file), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(syncFile(dir), dir.Close())
}

// hostKeys are the public SSH host keys of the system, which make it known from then on.
func hostKeys(root string) []string {
	paths, _ := filepath.Glob(filepath.Join(root, "etc/ssh/ssh_host_*_key.pub"))
	var keys []string
	for _, path := range paths {
		if key, err := os.ReadFile(path); err == nil && len(keys) < 16 {
			keys = append(keys, string(bytes.TrimSpace(key)))
		}
	}
	return keys
}

// bootID is that of the running kernel.
func bootID(root string) (string, error) {
	id, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"))
	return string(bytes.TrimSpace(id)), err
}

// upRequest is what is reported.
func upRequest(root string, token *agentv1.BootToken) (*agentv1.ReportUpRequest, error) {
	boot, err := bootID(root)
	if err != nil {
		return nil, fmt.Errorf("read the boot ID: %w", err)
	}
	return &agentv1.ReportUpRequest{
		MachineId: token.GetMachineId(), InstallGeneration: token.GetInstallGeneration(), Attempt: token.GetAttempt(),
		Secret: token.GetSecret(), BootId: boot, HostKeys: hostKeys(root),
	}, nil
}
