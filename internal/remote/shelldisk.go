package remote

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shell"
)

// shellDisk is a disk of a host that has no SFTP. It uses what POSIX has a host have: sh, ls,
// mkdir, mv, rm, chmod and dd, the BusyBox ones included. What a file holds arrives in chunks, each
// by a command of its own, whose end says that the chunk is there.
type shellDisk struct{ host *Host }

const (
	// block is the unit in which dd counts, and chunk how much one command takes.
	block = 32 << 10
	chunk = 8 * block
	// nothingThere is what a script answers when there is no such file.
	nothingThere = "nothing there"
	// readingSpeed is how many bytes a second a host that is read from sends at least.
	readingSpeed = 64 << 10
)

// run runs a script by the host's sh: the user's login shell may be another.
func (d shellDisk) run(ctx context.Context, what, script string, command Command) ([]byte, error) {
	command.OnStderr, command.reasonFirst = func(string) {}, true
	return d.host.line(ctx, what, "exec sh -c "+shell.Word(script), command)
}

func (d shellDisk) do(ctx context.Context, what, format string, names ...any) error {
	for i, name := range names {
		if name, ok := name.(string); ok {
			names[i] = shell.Word(name)
		}
	}
	_, err := d.run(ctx, what, fmt.Sprintf(format, names...), Command{})
	return err
}

func (d shellDisk) own(ctx context.Context, directory string, uid uint32) (string, error) {
	quoted := shell.Word(directory)
	script := "if [ -e " + quoted + " ] && [ ! -d " + quoted + " ]; then echo it is not a directory >&2; exit 1; fi; umask 077; mkdir -p " + quoted +
		" && cd " + quoted + ` && d=$(pwd -P) && printf "%s\n" "$d" && ` +
		`while :; do ls -ldn "$d" || exit 1; [ "$d" = / ] && exit 0; d=${d%/*}; d=${d:-/}; done`
	output, err := d.run(ctx, "prepare "+directory, script, Command{})
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSuffix(string(output), "\n"), "\n")
	whole := lines[0]
	var above []entry
	for _, line := range lines[1:] {
		listed, err := parseListed(line)
		if err != nil {
			return "", fmt.Errorf("prepare %s: %w", directory, err)
		}
		above = append(above, listed)
	}
	depth := strings.Count(whole, "/") + 1
	if whole == "/" {
		depth = 1
	}
	if !path.IsAbs(whole) || path.Clean(whole) != whole || len(above) != depth {
		return "", fleet.Errorf(fleet.KindInvalid, "prepare %s: the host says that it is %s", directory, Quote(string(output)))
	}
	if err := checkDirectories(whole, above, uid); err != nil {
		return "", fmt.Errorf("prepare %s: %w", directory, err)
	}
	return whole, nil
}

func (d shellDisk) look(ctx context.Context, name string) (entry, error) {
	quoted := shell.Word(name)
	output, err := d.run(ctx, "look for "+shown(name),
		"if [ -e "+quoted+" ] || [ -h "+quoted+" ]; then ls -ldn "+quoted+"; else echo "+nothingThere+"; fi", Command{})
	if err != nil {
		return entry{}, err
	}
	line := strings.TrimSuffix(string(output), "\n")
	if line == nothingThere {
		return entry{}, fs.ErrNotExist
	}
	listed, err := parseListed(line)
	if err != nil {
		return entry{}, fmt.Errorf("look for %s: %w", shown(name), err)
	}
	return listed, nil
}

// parseListed reads a line of `ls -ldn`, as POSIX has it: mode, links, user, group and size.
func parseListed(line string) (entry, error) {
	words := strings.Fields(line)
	if len(words) < 6 || len(words[0]) < 10 {
		return entry{}, fleet.Errorf(fleet.KindInvalid, "ls wrote %s", Quote(line))
	}
	mode, known := parseMode(words[0][:10])
	uid, errUID := strconv.ParseUint(words[2], 10, 32)
	size, errSize := strconv.ParseInt(words[4], 10, 64)
	if mode.IsRegular() && errSize != nil || errUID != nil || !known {
		return entry{}, fleet.Errorf(fleet.KindInvalid, "ls wrote %s", Quote(line))
	}
	return entry{mode: mode, uid: uint32(uid), size: size}, nil
}

// parseMode reads the mode of a file as ls writes it, such as drwxr-xr-t.
func parseMode(text string) (fs.FileMode, bool) {
	kinds := map[byte]fs.FileMode{
		'-': 0, 'd': fs.ModeDir, 'l': fs.ModeSymlink, 'p': fs.ModeNamedPipe, 's': fs.ModeSocket, 'b': fs.ModeDevice,
		'c': fs.ModeDevice | fs.ModeCharDevice,
	}
	mode, known := kinds[text[0]]
	special := [3]fs.FileMode{fs.ModeSetuid, fs.ModeSetgid, fs.ModeSticky}
	for i := range 9 {
		bit := fs.FileMode(1) << (8 - i)
		switch c := text[1+i]; {
		case c == '-':
		case c == "rwx"[i%3]:
			mode |= bit
		case i%3 == 2 && (c == 's' && i < 8 || c == 't' && i == 8):
			mode |= bit | special[i/3]
		case i%3 == 2 && (c == 'S' && i < 8 || c == 'T' && i == 8):
			mode |= special[i/3]
		default:
			known = false
		}
	}
	return mode, known
}

func (d shellDisk) chmod(ctx context.Context, name string, mode fs.FileMode) error {
	return d.do(ctx, "chmod "+shown(name), "exec chmod %04o %s", mode.Perm(), name)
}

// rename does not move a file into a directory of that name.
func (d shellDisk) rename(ctx context.Context, from, to string) error {
	return d.do(ctx, "rename "+shown(from), "if [ -d %s ]; then echo it is a directory >&2; exit 1; fi; exec mv -f %s %s", to, from, to)
}

func (d shellDisk) remove(ctx context.Context, names ...string) {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = shell.Word(name)
	}
	_, _ = d.run(ctx, "remove", "exec rm -f "+strings.Join(quoted, " "), Command{})
}

func (d shellDisk) write(ctx context.Context, name string, data []byte, uid uint32) (sent int64, err error) {
	found, err := d.look(ctx, name)
	from := 0
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return 0, err
	case found.mode.IsRegular() && found.owned(uid) && found.size <= int64(len(data)):
		from = int(found.size) / block * block
	default:
		d.remove(ctx, name)
	}
	for at := from; at < len(data); at += chunk {
		piece := data[at:min(at+chunk, len(data))]
		script := fmt.Sprintf("umask 077; exec dd of=%s bs=%d seek=%d conv=notrunc", shell.Word(name), block, at/block)
		if _, err := d.run(ctx, "write "+shown(name), script, Command{Stdin: bytes.NewReader(piece)}); err != nil {
			return sent, err
		}
		sent += int64(len(piece))
	}
	return sent, nil
}

func (d shellDisk) digest(ctx context.Context, name string, size int64) (string, error) {
	output, err := d.run(ctx, "read "+shown(name), "exec cat "+shell.Word(name), Command{
		OutputLimit: int(size) + 1, Timeout: d.host.step + time.Duration(size/readingSpeed)*time.Second,
	})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(output)
	return hex.EncodeToString(sum[:]), nil
}

// explain has nothing to add: the commands say why they fail.
func (d shellDisk) explain(_ context.Context, _ string, _ int64, err error) error { return err }

// removeStale removes what uploads to the same base have left that nobody goes on with: of other
// contents, and files that were about to be renamed. What has arrived of this content stays, unless
// the content is there. For root it also removes those other contents that no process runs. It goes
// by the time of the host, and leaves what came just now. A host with SFTP is asked the same way: a
// list of its files would be as long as it likes.
//
// A file that stays is harmless, so a failure is only logged. A host that does not finish it in the
// time of one step is left to it, and the connection goes on.
func (d shellDisk) removeStale(ctx context.Context, u *upload, there bool) {
	name, old := path.Base(u.base), fmt.Sprintf("find . ! -name . -prune -type f -mmin +%d ", staleAfter/time.Minute)
	unfinished := old
	if !there {
		for _, packed := range []bool{true, false} {
			unfinished += "! -name " + shell.Word(path.Base(u.content.partial(u.base, packed))) + " "
		}
	}
	script := "cd " + shell.Word(path.Dir(u.base)) + " || exit\n" + unfinished +
		`\( -name ` + shell.Word(name+"-*"+partSuffix) + " -o -name " + shell.Word(name+"-*"+temporarySuffix) + ` \) -exec rm -f {} \;`
	if u.uid == 0 { // who is told what all processes run
		// The links are read, not followed: one to a file system that does not answer would hang. Nobody
		// is asked for the names of users, which may be a server that does not answer either. Where the
		// shell itself is missing, there may be others that are.
		script += "\nused=$(ls -ln /proc/[0-9]*/exe 2>/dev/null)\n" + `case $used in *" /proc/$$/exe -> "*) ;; *) exit ;; esac` + "\n" + old +
			"-name " + shell.Word(name+"-"+strings.Repeat("[0-9a-f]", len(u.content.Digest()))) + " ! -name " + shell.Word(path.Base(u.path)) +
			` | while read -r file; do case $used in *"${file#./}"*) ;; *) rm -f "$file" ;; esac; done`
	}
	outcome := make(chan error, 1)
	go func() {
		outcome <- d.host.bounded(context.WithoutCancel(ctx), "remove what was left", func() error {
			_, err := d.host.execute("exec sh -c "+shell.Word(script), Command{OnStderr: func(string) {}})
			return err
		})
	}()
	limit := time.NewTimer(d.host.step)
	defer limit.Stop()
	var err error
	select {
	case err = <-outcome:
	case <-limit.C:
		err = fleet.Errorf(fleet.KindTimeout, "the host did not finish it within %s", d.host.step)
	case <-ctx.Done():
		_ = d.host.end()
		return
	}
	// Where the script has failed, there is no find, or none that knows minutes.
	if _, exited := errors.AsType[*ExitError](err); err != nil && !exited {
		d.host.logger.Warn("what earlier uploads have left on the host was not removed", slog.Any("host", d.host.address), slog.Any("err", err))
	}
}
