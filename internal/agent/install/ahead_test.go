package install

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"
	"testing/synctest"
)

func TestAheadBringsEverythingInOrder(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{0, 1, fetchSize, fetchSize + 1, 3*fetchAhead*fetchSize + 7} {
		want := make([]byte, size)
		for i := range want {
			want[i] = byte(random.Uint32())
		}
		for name, source := range map[string]io.Reader{
			"whole": bytes.NewReader(want), "halves": iotest.HalfReader(bytes.NewReader(want)), "data and end together": iotest.DataErrReader(bytes.NewReader(want)),
		} {
			a := readAhead(source, func() {}, nil)
			got, err := io.ReadAll(a)
			a.stop()
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes of %d came, or others: %v", name, len(got), size, err)
			}
		}
	}
}

// TestAheadTellsTheError: what came before a failure is read before it, and the failure stays.
func TestAheadTellsTheError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	a := readAhead(io.MultiReader(bytes.NewReader([]byte("abc")), iotest.ErrReader(broken)), func() {}, nil)
	defer a.stop()
	if got, err := io.ReadAll(a); string(got) != "abc" || !errors.Is(err, broken) {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, broken) {
		t.Errorf("after that: %v", err)
	}
}

// endless is a source that brings its fill at once, so often, and then nothing until it is aborted.
type endless struct {
	ctx   context.Context //nolint:containedctx // of one test
	reads int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.reads == fetchAhead-1 {
		<-e.ctx.Done()
		return 0, e.ctx.Err()
	}
	e.reads++
	return len(p), nil
}

// TestAheadFetchesUnasked: while nobody reads, the buffers are filled; a read that hangs is ended
// by stop.
func TestAheadFetchesUnasked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, abort := context.WithCancel(t.Context())
		source := &endless{ctx: ctx}
		a := readAhead(source, abort, nil)
		synctest.Wait()
		if source.reads != fetchAhead-1 {
			t.Errorf("%d buffers were filled, and %d could have been", source.reads, fetchAhead-1)
		}
		a.stop() // the bubble notices if it does not return
	})
}
