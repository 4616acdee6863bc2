package install

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

// slow is a medium whose writes end when they are let.
type slow struct {
	medium
	let     chan struct{}
	err     error
	writing atomic.Int32
	written atomic.Int64
}

func (m *slow) WriteAt(p []byte, _ int64) (int, error) {
	m.writing.Add(1)
	defer m.writing.Add(-1)
	<-m.let
	m.written.Add(int64(len(p)))
	return len(p), m.err
}

// TestADiskHasSeveralWritesAtATime: a disk never waits for the next write while there is one, and
// the stream ends when all of them have.
func TestADiskHasSeveralWritesAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 3*mebibyte + 100
		m := &slow{let: make(chan struct{})}
		s := &stream{
			raw: bytes.NewReader(bytes.Repeat([]byte{1}, size)), abort: func() {}, limit: size, disk: &disk{medium: m}, progress: func(int64) {},
		}
		ended := make(chan error, 1)
		go func() { ended <- s.run(t.Context()) }()
		synctest.Wait()
		if n := m.writing.Load(); n != writesAtOnce {
			t.Errorf("%d writes are under way, and %d could be", n, writesAtOnce)
		}
		select {
		case err := <-ended:
			t.Errorf("it ended before its writes: %v", err)
		default:
		}
		close(m.let)
		if err := <-ended; err != nil || m.written.Load() != size-mebibyte || len(s.head) != mebibyte {
			t.Errorf("%v; %d bytes were written besides a head of %d", err, m.written.Load(), len(s.head))
		}
	})
}

// TestAWriteThatFailsEndsTheStream: also when it is heard of only later.
func TestAWriteThatFailsEndsTheStream(t *testing.T) {
	t.Parallel()
	m := &slow{let: make(chan struct{}), err: unix.EIO}
	close(m.let)
	image := bytes.NewReader(bytes.Repeat([]byte{1}, 64*mebibyte))
	s := &stream{raw: image, abort: func() {}, limit: 64 * mebibyte, disk: &disk{medium: m}, progress: func(int64) {}}
	if err := s.run(t.Context()); !errors.Is(err, unix.EIO) || image.Len() == 0 {
		t.Errorf("the stream ended with %v, and %d bytes of the image are left", err, image.Len())
	}
}

// zeroing is a medium that tells of each range that it makes zeros.
type zeroing struct {
	medium
	zero func(offset, length int64)
}

func (m *zeroing) Zero(_ uint32, offset, length int64) error {
	m.zero(offset, length)
	return nil
}

// TestALongRunOfZerosIsMadeInPieces: a disk that makes zeros hears nothing, so a run is no longer
// than it may take when somebody wants the stream to end.
func TestALongRunOfZerosIsMadeInPieces(t *testing.T) {
	t.Parallel()
	const size = 4*maxZeros + 5*mebibyte
	for _, stop := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		to := int64(mebibyte)
		m := &zeroing{zero: func(offset, length int64) {
			if offset != to || length > maxZeros {
				t.Errorf("%d bytes are made zeros at %d, after %d", length, offset, to)
			}
			to = offset + length
			if stop {
				cancel()
			}
		}}
		s := &stream{
			raw: io.LimitReader(allZeros{}, size), abort: func() {}, limit: size, disk: &disk{medium: m, isDevice: true}, progress: func(int64) {},
		}
		if err := s.run(ctx); stop != errors.Is(err, context.Canceled) || stop == (to == size) {
			t.Errorf("the stream ended at %d of %d, which it should: %v: %v", to, size, !stop, err)
		}
		cancel()
	}
}

// allZeros never ends.
type allZeros struct{}

func (allZeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
