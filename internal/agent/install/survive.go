package install

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
)

// Survive does something and turns a panic of it into an error. What a server sends has any form,
// and the agent may be the first process of the machine: a panic would restart it, from a disk that
// is wiped. Each goroutine needs one of its own.
func Survive(do func() error) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("there is a fault in the agent: %v (%s)", fault, faultPlace())
		}
	}()
	return do()
}

// faultPlace returns the file and the line that have panicked. It is called while that lasts.
func faultPlace() string {
	const skipped = 3 // this function and who recovers
	callers := make([]uintptr, 16)
	frames := runtime.CallersFrames(callers[:runtime.Callers(skipped, callers)])
	for {
		frame, more := frames.Next()
		if !strings.HasPrefix(frame.Function, "runtime.") || !more {
			return fmt.Sprintf("%s:%d", filepath.Base(frame.File), frame.Line)
		}
	}
}
