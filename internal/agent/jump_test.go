package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

// pipe returns the two ends of a pipe, which the caller closes.
func pipe(t *testing.T) (reader, writer int) {
	t.Helper()
	ends := make([]int, 2)
	if err := unix.Pipe2(ends, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	return ends[0], ends[1]
}

// The system is not ended for an agent whose key no control plane has: where the control plane went
// away while the takeover ran, nobody has its answer.
func TestJumpAwaitsTheAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer func(ctx context.Context, writer int, h *host) error
		leaps  bool
		want   error
	}{
		"it was written": {func(_ context.Context, writer int, _ *host) error {
			_, err := unix.Write(writer, []byte{1})
			return errors.Join(err, unix.Close(writer))
		}, true, nil},
		"nobody took it": {func(_ context.Context, writer int, _ *host) error { return unix.Close(writer) }, false, errUnanswered},
		"a newer takeover": {func(ctx context.Context, writer int, h *host) error {
			return errors.Join(takeover.StopAgent(ctx, h.root), unix.Close(writer))
		}, false, takeover.ErrSuperseded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.prepare(t, initMessage(1, newAuthority(t)))
			ready, theirReady := pipe(t)
			theirAnswer, answer := pipe(t)
			leaps, unloads := 0, 0
			given := t.Context()
			ended := make(chan error, 1)
			go func() {
				ended <- jumper{
					root: h.root, ready: theirReady, answer: theirAnswer,
					leap: func(ctx context.Context, _ *takeover.Store, _ *agentv1.TakeoverInit) error {
						leaps, given = leaps+1, ctx
						return nil
					},
					unload: func() error { unloads++; return nil },
				}.run(t.Context())
			}()
			file := os.NewFile(uintptr(ready), "ready")
			defer func() { _ = file.Close() }()
			if word, err := io.ReadAll(file); err != nil || string(word) != readyWord {
				t.Fatalf("%q, %v", word, err)
			}
			if err := test.answer(t.Context(), answer, h); err != nil {
				t.Fatal(err)
			}
			err := <-ended
			if !errors.Is(err, test.want) || leaps == 1 != test.leaps || unloads == 1 == test.leaps {
				t.Errorf("%v; it has jumped %d times, and unloaded %d times", err, leaps, unloads)
			}
			if test.leaps && given.Err() == nil {
				t.Error("what ends the process does not end its jump")
			}
		})
	}
}

// heard is a kernel that is told of the answer.
type heard struct {
	kernel
	written []bool
}

func (h *heard) answered(written bool) { h.written = append(h.written, written) }

// deaf takes nothing.
type deaf struct{}

func (deaf) Write([]byte) (int, error) { return 0, unix.EPIPE }

func TestTakeoverTellsTheJumpOfItsAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		stdout  io.Writer
		written bool
		code    int
	}{
		"it was written": {io.Discard, true, exitDone},
		"nobody took it": {deaf{}, false, exitFailed},
	} {
		h, k := newHost(t), new(heard)
		init := initMessage(1, newAuthority(t))
		init.Mode = agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC
		code := Main(t.Context(), []string{"takeover"}, Env{
			Root: h.root, Version: "v1", Stdin: bytes.NewReader(encoded(t, init)), Stdout: test.stdout, Stderr: io.Discard, kexec: k,
		})
		if code != test.code || len(k.written) != 1 || k.written[0] != test.written {
			t.Errorf("%s: exit code %d, told %v", name, code, k.written)
		}
	}
}
