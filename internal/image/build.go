package image

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// builder is one build.
type builder struct {
	Options
	// tool maps names of programs to their paths.
	tool map[string]string
	// work is a directory of this build alone, and lock is held on it, by the tools of the build too.
	work string
	lock *os.File
	// packages are what mmdebstrap has installed.
	packages []Package
	// seed is what every UUID is derived from.
	seed [sha256.Size]byte
}

// Build makes the image and its manifest, and returns the latter.
func Build(ctx context.Context, options Options) (manifest Manifest, err error) {
	if err := options.Validate(); err != nil {
		return Manifest{}, err
	}
	if err := options.findFiles(); err != nil {
		return Manifest{}, err
	}
	if os.Geteuid() != 0 {
		return Manifest{}, errors.New("an image can only be built by root, because the files in it belong to many users")
	}
	tool, err := findTools()
	if err != nil {
		return Manifest{}, err
	}
	b := &builder{Options: options.withDefaults(), tool: tool}
	output, err := filepath.Abs(b.Output)
	if err != nil {
		return Manifest{}, err
	}
	b.Output = output
	if err := b.makeWork(filepath.Dir(output)); err != nil {
		return Manifest{}, err
	}
	defer func() { err = errors.Join(err, removeWork(b.work), b.lock.Close()) }()
	return b.build(ctx)
}

func (b *builder) build(ctx context.Context) (Manifest, error) {
	tree := filepath.Join(b.work, "tree")
	for _, step := range []struct {
		name string
		do   func(ctx context.Context, tree string) error
	}{
		{"put the packages together", b.bootstrap},
		{"read the list of packages", b.readPackages},
		{"configure the system", b.configure},
		{"make the EFI system partition", b.makeESP},
		{"give files their times", b.clampTimes},
		{"make the root file system", b.makeRoot},
	} {
		started := time.Now()
		if err := step.do(ctx, tree); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return Manifest{}, fmt.Errorf("%s: %w", step.name, err)
		}
		b.Log(fmt.Sprintf("%s: %s", step.name, time.Since(started).Round(100*time.Millisecond)))
	}
	return b.assemble(ctx, tree)
}

// id derives a UUID from what the image is made of.
func (b *builder) id(what string) uuid.UUID {
	return uuid.NewSHA1(uuid.NameSpaceOID, append(b.seed[:], what...))
}

// volumeID derives the serial number of a FAT file system, as eight hexadecimal digits.
func (b *builder) volumeID() string {
	id := b.id("esp")
	return fmt.Sprintf("%X", id[:4])
}

// env is the environment of every tool: nothing of the host's that could end up in the image.
func (b *builder) env() []string {
	epoch := fmt.Sprint(b.Timestamp.Unix())
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "TZ=UTC", "HOME=/root",
		"TMPDIR=" + b.work, "SOURCE_DATE_EPOCH=" + epoch, "E2FSPROGS_FAKE_TIME=" + epoch, "MTOOLS_SKIP_CHECK=1", "MTOOLSRC=/dev/null",
	}
}

// run runs a tool and returns its standard output. What it says otherwise goes to the log, and its
// last words into the error.
func (b *builder) run(ctx context.Context, stdin io.Reader, program string, args ...string) (string, error) {
	path, ok := b.tool[program]
	if !ok {
		path = program
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir, cmd.Stdin = b.env(), b.work, stdin
	if b.lock != nil {
		cmd.ExtraFiles = []*os.File{b.lock} // a tool that outlives us is still at work there
	}
	// mmdebstrap binds parts of the host's /dev and /sys into the tree. In a mount namespace of its
	// own they are never seen below it from outside, however it ends: whoever removes the tree must
	// not reach the host's.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Unshareflags: syscall.CLONE_NEWNS}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	var out strings.Builder
	cmd.Stdout = &out
	complaints, writer := io.Pipe()
	cmd.Stderr = writer
	last := make(chan []string, 1)
	go func() { last <- b.follow(complaints) }()
	err := cmd.Run()
	_ = writer.Close()
	lines := <-last
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, strings.Join(lines, " / "))
	}
	return out.String(), nil
}

// follow logs lines until they end, and returns the last few.
func (b *builder) follow(complaints io.Reader) (last []string) {
	lines := bufio.NewScanner(complaints)
	lines.Buffer(nil, mebibyte)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		b.Log(line)
		last = append(last, line)
		if len(last) > 5 {
			last = last[1:]
		}
	}
	_, _ = io.Copy(io.Discard, complaints)
	return last
}
