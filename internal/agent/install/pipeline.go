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
	chunkSize = 256 << 10
	// chunksAhead is how many chunks may wait for the hash, and how many for the disk. A disk that
	// pauses for a moment does not stop the decoder.
	chunksAhead = 16
)

// chunk is a piece of the raw image. It goes back to the pool when both the hash and the disk are
// done with it.
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
	// abort makes a blocked read of raw return.
	abort func()
	// limit is where the image must have ended.
	limit int64
	disk  *disk
	// head receives the first MiB, which is held back.
	head []byte
	// checkHead is called when the whole first MiB is there. Its error ends the stream. May be nil.
	checkHead func(head []byte) error
	// progress is called with the number of bytes that are written.
	progress func(done int64)

	hash  hash.Hash
	total int64
}

// run moves the image and returns when all of it, besides the head, was written and hashed.
func (s *stream) run(ctx context.Context) error {
	s.hash = sha256.New()
	s.head = s.head[:0]
	group, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, s.abort)()
	toHash, toDisk := make(chan *chunk, chunksAhead), make(chan *chunk, chunksAhead)
	group.Go(func() error {
		defer close(toHash)
		defer close(toDisk)
		return s.read(ctx, toHash, toDisk)
	})
	group.Go(func() error {
		for c := range toHash {
			s.hash.Write(c.data)
			c.done()
		}
		return nil
	})
	group.Go(func() error { return s.write(toDisk) })
	return group.Wait()
}

// read cuts the image into chunks.
func (s *stream) read(ctx context.Context, toHash, toDisk chan<- *chunk) error {
	for {
		c := chunks.Get().(*chunk)
		n, err := fill(s.raw, c.buffer[:])
		c.data, c.offset = c.buffer[:n], s.total
		s.total += int64(n)
		ended := errors.Is(err, io.EOF)
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF):
			return errCutShort
		case err != nil && !ended:
			return err
		case s.total > s.limit:
			return errTooLarge
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
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
		if ended {
			return nil
		}
	}
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

// write writes all but the head. After a failure the rest of the chunks is left to the collector.
func (s *stream) write(toDisk <-chan *chunk) error {
	w := writer{disk: s.disk}
	for c := range toDisk {
		data, offset := c.data, c.offset
		if offset < mebibyte { // chunks divide the head evenly
			s.head = append(s.head, data...)
			if len(s.head) == mebibyte && s.checkHead != nil {
				if err := s.checkHead(s.head); err != nil {
					return err
				}
			}
		} else if err := w.write(data, offset); err != nil {
			return fmt.Errorf("write the disk: %w", err)
		}
		s.progress(offset + int64(len(data)))
		c.done()
	}
	if err := w.flush(); err != nil {
		return fmt.Errorf("write the disk: %w", err)
	}
	return nil
}
