package demo

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory is how much memory a demo needed, in bytes.
type Memory struct {
	// Here is the peak of this process: world, control plane, and the agents that run in it.
	Here int64 `yaml:"here"`
	// Agents is the most that the processes of agents were seen to need together; memory that they
	// share is counted once.
	Agents int64 `yaml:"agents"`
}

// peak returns the most memory that this process has had resident; 0 where the kernel does not
// tell.
func peak() int64 {
	return field("/proc/self/status", "VmHWM:")
}

// agentsMemory returns the memory of the agents that run as processes under dir.
func agentsMemory(dir string) int64 {
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return 0
	}
	marker := []byte("IRONHERD_AGENT_ROOT=" + dir)
	total := int64(0)
	for _, environ := range processes {
		content, err := os.ReadFile(environ)
		if err != nil || !bytes.Contains(content, marker) {
			continue // the process has ended, belongs to another user, or is no agent of this demo
		}
		total += field(filepath.Join(filepath.Dir(environ), "smaps_rollup"), "Pss:")
	}
	return total
}

// field reads a value in kB from a file of procfs, and returns bytes.
func field(path, name string) int64 {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(content), "\n") {
		if rest, ok := strings.CutPrefix(line, name); ok {
			value, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err == nil {
				return value << 10
			}
		}
	}
	return 0
}
