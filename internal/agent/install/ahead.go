package install

import (
	"hash"
	"io"
)

const (
	// fetchSize is the size of one buffer of what was fetched, and fetchAhead how many there are.
	fetchSize  = 128 << 10
	fetchAhead = 8
)

// ahead reads from a source before it is asked to, over a fixed number of buffers: the network, the
// hash and the decoder do not wait for each other. One goroutine may read from it.
type ahead struct {
	// abort makes a read of the source that is under way return soon.
	abort func()
	free  chan []byte
	full  chan fetched
	ended chan struct{}
	// buffer is what the reader has at the moment, and rest what it has not taken of it yet.
	buffer, rest []byte
	err          error
}

// fetched is what one read of the source has brought: buffer[:n], and then the error.
type fetched struct {
	buffer []byte
	n      int
	err    error
}

// readAhead begins to read. Only stop may be called before the source is used otherwise. What was
// read has been hashed; sum may be nil.
func readAhead(source io.Reader, abort func(), sum hash.Hash) *ahead {
	// In each channel there is room for every buffer.
	a := &ahead{abort: abort, free: make(chan []byte, fetchAhead), full: make(chan fetched, fetchAhead), ended: make(chan struct{})}
	for range fetchAhead {
		a.free <- make([]byte, fetchSize)
	}
	read := a.full
	if sum != nil {
		read = make(chan fetched, fetchAhead)
		go a.sum(read, sum)
	}
	go func() {
		defer close(a.ended)
		defer close(read)
		for buffer := range a.free {
			n := 0
			err := Survive(func() (err error) {
				n, err = source.Read(buffer)
				return err
			})
			read <- fetched{buffer, n, err}
			if err != nil {
				return
			}
		}
	}()
	return a
}

// sum hashes what was read on its way to the reader.
func (a *ahead) sum(read <-chan fetched, sum hash.Hash) {
	for next := range read {
		fault := Survive(func() error {
			_, err := sum.Write(next.buffer[:next.n])
			return err
		})
		if fault != nil {
			next.n, next.err = 0, fault
		}
		a.full <- next
	}
}

// Read implements io.Reader.
func (a *ahead) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.err != nil {
			return 0, a.err
		}
		if a.buffer != nil {
			a.free <- a.buffer
		}
		next := <-a.full
		a.buffer, a.rest, a.err = next.buffer, next.buffer[:next.n], next.err
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// stop ends the reading. When it returns, nobody reads from the source any more. Nobody may call
// Read after it.
func (a *ahead) stop() {
	a.abort()
	close(a.free)
	<-a.ended
}
