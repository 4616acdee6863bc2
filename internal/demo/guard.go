package demo

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
)

// guard is a process that ends the agents of a world when this process is gone, whatever has ended
// it. Each agent has put itself into a session of its own, as on a real machine, and is nobody's
// child: neither a signal to this process nor its end reaches it.
type guard struct{ command *exec.Cmd }

// guardScript waits for the end of its input, and then kills all whose environment says $1. It
// looks twice at least, because a process that is being started has no environment of its own yet,
// and gives up on those that do not die.
const guardScript = `cat >/dev/null
tries=0
while [ $tries -lt 50 ]; do
	found=$(grep -lsF -e "$1" /proc/[0-9]*/environ | cut -d/ -f3)
	[ -n "$found" ] || [ $tries -eq 0 ] || exit 0
	[ -z "$found" ] || kill -KILL $found
	tries=$((tries + 1))
	sleep 0.1
done`

// startGuard guards the world in that directory, which is absolute.
func startGuard(world string) (*guard, error) {
	// It outlives this process for a moment: that is what it is for.
	marker := "IRONHERD_AGENT_ROOT=" + filepath.Join(world, "hosts") + "/"
	command := exec.Command("sh", "-c", guardScript, "sh", marker) //nolint:noctx // see above
	command.Dir = "/"
	command.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	// An interrupt at the terminal is not for it.
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// The command keeps the other end, which nobody but this process has.
	_, err := command.StdinPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start what ends the agents with this process: %w", err)
	}
	return &guard{command}, nil
}

// close ends it. What it guards must have ended.
func (g *guard) close() {
	_ = g.command.Process.Kill() // it may have ended already
	_ = g.command.Wait()         // it was killed
}
