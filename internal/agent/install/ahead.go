package install

import "io"

const (
	// fetchSize is the size of one buffer of what was fetched, and fetchAhead how many there are.
	fetchSize  = 128 << 10
	fetchAhead = 8
)

// ahead reads from a source before it is asked to, over a fixed number of buffers: the network and
// the decoder do not wait for each other. One goroutine may read from it.
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

// readAhead begins to read. Only stop may be called before the source is used otherwise.
func readAhead(source io.Reader, abort func()) *ahead {
	a := &ahead{abort: abort, free: make(chan []byte, fetchAhead), full: make(chan fetched, fetchAhead), ended: make(chan struct{})}
	for range fetchAhead {
		a.free <- make([]byte, fetchSize)
	}
	go func() {
		defer close(a.ended)
		for buffer := range a.free {
			n, err := source.Read(buffer)
			a.full <- fetched{buffer, n, err} // there is room for every buffer
			if err != nil {
				return
			}
		}
	}()
	return a
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
