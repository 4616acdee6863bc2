package takeover

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestLeave: the agent is stopped and nothing of it is left; it can be repeated; another machine's
// host is not touched, and neither is what is not ours.
func TestLeave(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	for _, name := range []string{"root/agent/ironherd-agent-1234", "opt/ironherd-agent-1", "opt/other", "var/log/ironherd-agent.log"} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	stopped := false
	response := take(t, root, message(machineA, 1), func() error {
		var lock *HostLock
		var err error
		lock, err = LockHost(root, func() { stopped = true; lock.Release() })
		return err
	})
	if response.GetSuccess() == nil {
		t.Fatal(response)
	}
	if err := Leave(t.Context(), root, machineB, 0, "/root/agent"); !errors.Is(err, ErrOtherMachine) || stopped {
		t.Fatalf("another machine: %v, stopped %t", err, stopped)
	}
	// A control plane that is late: another agent is in charge since.
	if response := take(t, root, message(machineA, 2), fine); response.GetSuccess() == nil {
		t.Fatal(response)
	}
	if !stopped {
		t.Fatal("the takeover did not stop the agent before")
	}
	if err := Leave(t.Context(), root, machineA, 1, "/root/agent"); !errors.Is(err, ErrSuperseded) {
		t.Fatalf("after a newer takeover: %v", err)
	}
	if _, err := NewStore(root).Load(); err != nil {
		t.Fatal(err)
	}
	for _, directory := range []string{"/root/agent", "/opt", "/root/agent"} {
		if err := Leave(t.Context(), root, machineA, 2, directory); err != nil || !stopped {
			t.Fatalf("%v, stopped %t", err, stopped)
		}
	}
	for name, stays := range map[string]bool{
		"root/agent": false, "opt/ironherd-agent-1": false, "opt/other": true, "var/log/ironherd-agent.log": false,
		"var/lib/ironherd-agent": false, "run/ironherd-agent": false, "root": true, "proc": true,
	} {
		if _, err := os.Stat(filepath.Join(root, name)); (err == nil) != stays {
			t.Errorf("%s: %v", name, err)
		}
	}
	if response := take(t, root, message(machineB, 1), fine); response.GetSuccess() == nil {
		t.Error(response) // the host can be taken over anew
	}
}

// TestLeaveKeepsDirectoriesOfOthers: a directory goes only if it could have been made for the
// agent. That one which could cannot be removed is no failure.
func TestLeaveKeepsDirectoriesOfOthers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		mode          os.FileMode
		ours, mounted bool
		stays         bool
	}{
		"made for the agent":         {0o700, true, false, false},
		"open to others":             {0o755, true, false, true},
		"nothing of ours was in it":  {0o700, false, false, true},
		"something is mounted there": {0o700, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := newRoot(t)
			directory := filepath.Join(root, "srv/agent")
			if err := os.MkdirAll(directory, 0o700); err != nil {
				t.Fatal(err)
			}
			if test.mounted {
				if err := syscall.Mount("tmpfs", directory, "tmpfs", 0, "size=64k"); err != nil {
					if os.Getenv("CI") == "" {
						t.Skipf("needs to mount: %v", err)
					}
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = syscall.Unmount(directory, syscall.MNT_DETACH) })
			}
			if err := os.Chmod(directory, test.mode); err != nil {
				t.Fatal(err)
			}
			executable := filepath.Join(directory, "ironherd-agent-1")
			if test.ours {
				if err := os.WriteFile(executable, nil, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := Leave(t.Context(), root, machineA, 0, "/srv/agent"); err != nil {
				t.Errorf("leave: %v", err)
			}
			if _, err := os.Stat(directory); (err == nil) != test.stays {
				t.Errorf("the directory is there: %t", err == nil)
			}
			if _, err := os.Stat(executable); err == nil {
				t.Error("the executable is there still")
			}
		})
	}
}
