package install

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

const (
	chunkSize = 512 << 10
	// chunksAhead is how many chunks may wait for the hash, and how many for the disk. A disk that
	// pauses for a moment does not stop the decoder.
	chunksAhead = 8
	// writesAtOnce is how many writes a disk may have at a time, so that it never waits for the next
	// one. A disk without a cache of its own would wait for a revolution each time.
	writesAtOnce = 4
)

// chunk is a piece of the raw image. It goes back to the pool when the hash and all writes are done
// with it.
type chunk struct {
	buffer *[chunkSize]byte
	data   []byte
	offset int64
	users  atomic.Int32
}

var chunks = sync.Pool{New: func() any { return &chunk{buffer: new([chunkSize]byte)} }}

func (c *chunk) done() {
	if c.users.Add(-1) == 0 {
		chunks.Put(c)
	}
}

// stream is a raw image on its way to the disk.
type stream struct {
	raw io.Reader
	// file is what raw is decoded from. When raw has ended, it is read to its end, because what a
	// decoder leaves belongs to its digest. Nil: nobody wants that.
	file io.Reader
	// abort makes a blocked read of raw return.
	abort func()
	// limit is where the image must have ended.
	limit int64
	disk  *disk
	// head receives the first MiB, which is held back. It is made unless it has room for that.
	head []byte
	// begin is called with the first MiB, or all of a smaller image, before anything is written. Its
	// error ends the stream, and is kept in refused. May be nil.
	begin   func(ctx context.Context, head []byte) error
	refused error
	// progress is called with the number of bytes that are written, or about to be.
	progress func(done int64)

	hash  hash.Hash
	total int64
	// written is how many bytes of it the disk has.
	written atomic.Int64
	// ended says that the whole image is in head.
	ended bool
}

// run reads the head, has it looked at, and moves the rest of the image. It returns when all of
// that was written and hashed.
func (s *stream) run(ctx context.Context) error {
	s.hash = sha256.New()
	if err := s.readHead(ctx); err != nil {
		return err
	}
	if s.begin != nil {
		if s.refused = s.begin(ctx, s.head); s.refused != nil {
			return s.refused
		}
	}
	s.progress(s.total)
	group, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, s.abort)()
	toHash, toDisk := make(chan *chunk, chunksAhead), make(chan *chunk, chunksAhead)
	start := func(do func() error) { group.Go(func() error { return Survive(do) }) }
	start(func() error {
		defer close(toHash)
		defer close(toDisk)
		return s.read(ctx, toHash, toDisk)
	})
	start(func() error {
		for c := range toHash {
			s.hash.Write(c.data)
			c.done()
		}
		return nil
	})
	start(func() error { return s.write(ctx, start, toDisk) })
	return group.Wait()
}

// readHead reads the first MiB, and hashes it.
func (s *stream) readHead(ctx context.Context) error {
	if cap(s.head) < mebibyte {
		s.head = make([]byte, mebibyte)
	}
	n, err := s.fill(ctx, s.head[:mebibyte])
	s.head = s.head[:n]
	s.hash.Write(s.head)
	return err
}

// fill reads the next part of the image, all of the buffer unless the image ends.
func (s *stream) fill(ctx context.Context, buffer []byte) (n int, err error) {
	n, err = fill(s.raw, buffer)
	s.total += int64(n)
	if s.ended = errors.Is(err, io.EOF); s.ended && s.file != nil {
		if _, err := io.Copy(io.Discard, s.file); err != nil {
			return n, err
		}
	}
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return n, errCutShort
	case err != nil && !s.ended:
		return n, err
	case s.total > s.limit:
		return n, errTooLarge
	case ctx.Err() != nil:
		return n, context.Cause(ctx)
	}
	return n, nil
}

// read cuts the rest of the image into chunks.
func (s *stream) read(ctx context.Context, toHash, toDisk chan<- *chunk) error {
	for !s.ended {
		c := chunks.Get().(*chunk)
		offset := s.total
		n, err := s.fill(ctx, c.buffer[:])
		if err != nil {
			return err
		}
		c.data, c.offset = c.buffer[:n], offset
		if n > 0 {
			c.users.Store(2)
			for _, to := range []chan<- *chunk{toHash, toDisk} {
				select {
				case to <- c:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
		}
	}
	return nil
}

// fill reads until the buffer is full or the reader ends. Unlike io.ReadFull it leaves an end in
// the middle to those who know what an end is.
func fill(r io.Reader, buffer []byte) (n int, err error) {
	for n < len(buffer) && err == nil {
		var more int
		more, err = r.Read(buffer[n:])
		n += more
	}
	return n, err
}

var errCutShort = errors.New("the compressed image ends in the middle: it is cut short")

var errTooLarge = errors.New("the image is larger than was said")

// write writes the chunks, several parts at a time. Each write is a goroutine of its own. After a
// failure the rest of the chunks is left to the collector.
func (s *stream) write(ctx context.Context, start func(do func() error), toDisk <-chan *chunk) error {
	var c *chunk
	slots := make(chan struct{}, writesAtOnce)
	w := writer{disk: s.disk, put: func(data []byte, offset int64) error {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		c := c
		c.users.Add(1)
		start(func() error {
			if err := s.disk.write(data, offset); err != nil {
				return writeError(err)
			}
			s.written.Add(int64(len(data)))
			c.done()
			<-slots
			return nil
		})
		return nil
	}}
	defer func() { s.written.Add(w.zeroed) }()
	for c = range toDisk {
		if err := w.write(c.data, c.offset); err != nil {
			return writeError(err)
		}
		s.progress(c.offset + int64(len(c.data)))
		c.done()
	}
	if err := w.flush(); err != nil {
		return writeError(err)
	}
	return nil
}

func writeError(err error) error { return fmt.Errorf("write the disk: %w", err) }
