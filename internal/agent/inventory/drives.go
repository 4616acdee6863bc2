package inventory

import (
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// drivesLimit is how long drives are waited for, all of them together, by who has the time. Each of
// a drive's commands ends by itself after healthTimeoutMs and the time in which the kernel resets
// it, so a drive that takes longer may never answer.
const drivesLimit = 45 * time.Second

// drives asks the drives of this machine, all at once. One that has died keeps whoever asks it in
// the kernel, for ever: it costs one thread, and no report waits for it.
type drives struct {
	mu sync.Mutex
	// silent has the drives that did not answer in time. The channel is closed when one does.
	silent map[string]chan struct{}
}

// machineDrives are those of this kernel, of which a process has one set.
var machineDrives = new(drives)

// question is one to a drive, of which ask completes what is known. What it is about is told in
// warnings.
type question struct {
	about string
	ask   func(disk *agentv1.BlockDevice) error
}

// answer is the disk at a place in a list as it is known after a question.
type answer struct {
	at   int
	disk *agentv1.BlockDevice
	err  error
}

// ask puts a question to the disks of a list at the places. It replaces those that answer within
// the limit, which is for all of them together. It returns a warning for each that did not, and for
// each that is silent since an earlier question, which is not asked again.
func (d *drives) ask(list []*agentv1.BlockDevice, places []int, limit time.Duration, q question) (warnings []string) {
	warn := func(at int, why string) {
		warnings = append(warnings, fmt.Sprintf("the %s of %s cannot be read: %s", q.about, list[at].GetName(), why))
	}
	answers := make(chan answer, len(places))
	open := make(map[int]chan struct{})
	for _, at := range places {
		if d.isSilent(list[at].GetName()) {
			warn(at, "the drive has not answered an earlier question")
			continue
		}
		// A late answer must not change what has been reported.
		disk, answered := proto.CloneOf(list[at]), make(chan struct{})
		open[at] = answered
		go func() {
			defer close(answered)
			err := unbroken(func() error { return q.ask(disk) })
			answers <- answer{at, disk, err}
		}()
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for len(open) > 0 {
		select {
		case a := <-answers:
			delete(open, a.at)
			list[a.at] = a.disk
			if a.err != nil {
				warn(a.at, reason(a.err))
			}
		case <-timer.C:
			for at, answered := range open {
				d.setSilent(list[at].GetName(), answered)
				warn(at, fmt.Sprintf("the drive did not answer within %s", limit))
			}
			return warnings
		}
	}
	return warnings
}

// isSilent says whether a drive still owes an answer to somebody who has given up.
func (d *drives) isSilent(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	answered, ok := d.silent[name]
	if !ok {
		return false
	}
	select {
	case <-answered:
		delete(d.silent, name)
		return false
	default:
		return true
	}
}

func (d *drives) setSilent(name string, answered chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.silent == nil {
		d.silent = make(map[string]chan struct{})
	}
	d.silent[name] = answered
}

// unbroken turns a panic into an error.
func unbroken(read func() error) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("a fault in the agent: %v", fault)
		}
	}()
	return read()
}
