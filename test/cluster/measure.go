package cluster

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Request is one line of the audit log.
type Request struct {
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	UserAgent  string `json:"userAgent"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Stage string `json:"stage"`
}

// Writes reports whether it is of a kind that changes something.
func (r Request) Writes() bool {
	switch r.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

func (c *Cluster) auditPath() string { return filepath.Join(c.dir, "audit.log") }

// Requests returns what the API server has answered since its first start, in the order of the
// answers. A watch appears twice: when it begins and when it ends.
func (c *Cluster) Requests() ([]Request, error) {
	f, err := os.Open(c.auditPath())
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer func() { _ = f.Close() }()
	var all []Request
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r Request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		all = append(all, r)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return all, nil
}

// CPU is the processor time that the API server has used since it was started.
func (c *Cluster) CPU() (time.Duration, error) {
	const tick = time.Second / 100 // USER_HZ, the same on every Linux platform that Go runs on
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.apiserver.Pid()))
	if err != nil {
		return 0, fmt.Errorf("measure the API server: %w", err)
	}
	_, rest, _ := strings.Cut(string(text), ") ") // after the name, which may hold anything
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("measure the API server: %d fields", len(fields))
	}
	var sum time.Duration
	for _, field := range fields[11:13] { // utime, stime: fields 14 and 15 of proc_pid_stat(5)
		ticks, err := strconv.Atoi(field)
		if err != nil {
			return 0, fmt.Errorf("measure the API server: %w", err)
		}
		sum += time.Duration(ticks) * tick
	}
	return sum, nil
}
