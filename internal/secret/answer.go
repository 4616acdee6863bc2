package secret

import (
	"fmt"
	"os"
	"time"
)

// Within returns what a reading of a file says. Where that takes longer than the limit, as on a
// network file system whose server does not answer, the error says so, and passes. Nothing ends the
// reading then: it goes on for as long as this process does, or until the file answers.
func Within[T any](limit time.Duration, read func() (T, error)) (T, error) {
	type answer struct {
		says T
		err  error
	}
	came := make(chan answer, 1)
	go func() {
		says, err := read()
		came <- answer{says, err}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-came:
		return a.says, a.err
	case <-timer.C:
		var none T
		return none, passing{fmt.Errorf("it did not answer within %s", limit)}
	}
}

// Answers returns the error of a file that does not answer within the limit when it is opened and
// read from. What else is wrong with it is for those to tell who read it.
func Answers(limit time.Duration, path string) error {
	_, err := Within(limit, func() (struct{}, error) {
		Touch(path)
		return struct{}{}, nil
	})
	if err != nil {
		return Unreadable(path, err)
	}
	return nil
}

// Touch opens a file as its readers do, and says nothing of it: it is for those who wait to see
// whether it answers. It takes nothing from a pipe, which has it only once.
func Touch(path string) {
	info, err := os.Stat(path)
	if err != nil || info.IsDir() || info.Mode()&os.ModeSocket != 0 {
		return
	}
	file, err := os.Open(path)
	if err != nil {
		return
	}
	if info.Mode().IsRegular() {
		_, _ = file.Read(make([]byte, 1))
	}
	_ = file.Close() // only read
}
