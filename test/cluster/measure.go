package cluster

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
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

func (s *APIServer) auditPath() string { return filepath.Join(s.dir, "audit.log") }

// audit is what has been read of the audit log so far. Tests ask for it hundreds of times, and it
// only grows.
type audit struct {
	sync.Mutex
	offset   int64
	requests []Request
}

// Requests returns what the API server has answered since its first start, in the order of the
// answers. A watch appears twice: when it begins and when it ends. The caller must not change it.
func (s *APIServer) Requests() ([]Request, error) {
	s.audit.Lock()
	defer s.audit.Unlock()
	if err := s.audit.read(s.auditPath()); err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return slices.Clip(s.audit.requests), nil
}

// read takes in the lines that have been added since the last call.
func (a *audit) read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if end, err := f.Seek(0, io.SeekEnd); err != nil || end < a.offset {
		return errors.Join(err, errors.New("it is shorter than it was"))
	}
	if _, err := f.Seek(a.offset, io.SeekStart); err != nil {
		return err
	}
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // what is left is a line that is being written
			return nil
		}
		if err != nil {
			return err
		}
		var r Request
		if err := json.Unmarshal(line, &r); err != nil {
			return err
		}
		a.offset += int64(len(line))
		a.requests = append(a.requests, r)
	}
}

// CPU is the processor time that the API server has used since it was started.
func (s *APIServer) CPU() (time.Duration, error) {
	const tick = time.Second / 100 // USER_HZ, the same on every Linux platform that Go runs on
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.running.Pid()))
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
