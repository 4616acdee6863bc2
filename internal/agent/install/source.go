package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const (
	// stallLimit is how long a download may stand still before it is asked for again.
	stallLimit = 30 * time.Second
	// maxFruitless is how many requests in a row may fail without having brought a byte, before
	// anything was written.
	maxFruitless = 8
	retryBase    = 100 * time.Millisecond
	retryCap     = 5 * time.Second
	// longWait is from when on an install tells that it has waited for the server.
	longWait = 10 * time.Second
)

var errStalled = errors.New("the download stood still")

// source is an image over HTTP, or in an OCI registry, read from the beginning to the end. A
// connection that breaks is replaced by one that goes on where it broke. It is not safe for
// concurrent use, and Read may not be called after Close.
type source struct {
	// ctx is the context of one install, which io.Reader cannot carry.
	ctx    context.Context //nolint:containedctx // see above
	stop   context.CancelCauseFunc
	client *http.Client
	url    string
	// safeURL is the URL for errors: without user and query, which may hold secrets.
	safeURL string
	// oci is set for an image in a registry. url is empty until its manifest was read.
	oci *ociReference
	// layer is what the manifest says of the image.
	layer ociLayer
	// token is what the registry wants to see; empty: nothing.
	token string

	body io.ReadCloser
	// cancel ends the current request. stall calls it when no byte has come for a while.
	cancel context.CancelCauseFunc
	stall  *time.Timer
	// offset is how many bytes were read, length how many there are, or -1 while that is unknown.
	offset, length int64
	fruitless      int
	last           error
	// patient is set when there is nothing to go back to: the server may be away, or not have the
	// image, as long as ctx lasts.
	patient atomic.Bool
	// waiting is called with why nothing comes, and with nothing when it comes again.
	waiting func(why string)
	// since is when it broke off, while nothing comes, and waited how long that has lasted before.
	since  time.Time
	waited time.Duration
}

// newSource makes the source of an image; the first Read makes the first request.
func newSource(ctx context.Context, client *http.Client, address string) (*source, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https" && parsed.Scheme != "oci") {
		return nil, errors.New("the image has no http://, https:// or oci:// URL")
	}
	safe := url.URL{Scheme: parsed.Scheme, Host: parsed.Host, Path: parsed.Path}
	s := &source{client: client, url: address, safeURL: safe.String(), length: -1, waiting: func(string) {}}
	if parsed.Scheme == "oci" {
		reference, err := parseOCI(parsed)
		if err != nil {
			return nil, err
		}
		s.oci, s.url = &reference, ""
	}
	s.ctx, s.stop = context.WithCancelCause(ctx)
	return s, nil
}

// Read implements io.Reader. Its errors are final.
func (s *source) Read(p []byte) (int, error) {
	for {
		if s.body == nil {
			if err := s.connect(); err != nil {
				return 0, err
			}
			if s.body == nil {
				continue
			}
		}
		s.stall.Reset(stallLimit)
		n, err := s.body.Read(p)
		s.stall.Stop()
		s.offset += int64(n)
		whole := err != nil && s.offset == s.length || errors.Is(err, io.EOF) && s.length < 0
		if s.fruitless > 0 && (n > 0 || whole) {
			s.comes()
		}
		switch {
		case whole:
			return n, io.EOF
		case err == nil:
			return n, nil
		}
		s.disconnect(err)
		if n > 0 {
			return n, nil
		}
	}
}

// open makes the first request, unless it was made. It returns when the server has begun to send
// the image, or with an error that is final.
func (s *source) open() error {
	for s.body == nil {
		if err := s.connect(); err != nil {
			return err
		}
	}
	s.stall.Stop() // the disk is prepared meanwhile
	return nil
}

// compression returns how the image is compressed, after open.
func (s *source) compression(image *agentv1.Image) agentv1.Compression {
	if c := image.GetCompression(); c != agentv1.Compression_COMPRESSION_LAYER || s.oci == nil {
		return c
	}
	return s.layer.compression()
}

// rawLength returns how long the image is, after open and before the next Read; -1: it is
// compressed, or the server does not say.
func (s *source) rawLength(image *agentv1.Image) int64 {
	if s.compression(image) != agentv1.Compression_COMPRESSION_NONE {
		return -1
	}
	return s.length
}

// fileDigest returns the digest that the file must have, after open: that of the request, or that
// of the manifest, which must not contradict each other.
func (s *source) fileDigest(asked *digest) (*digest, error) {
	if s.oci == nil {
		return asked, nil
	}
	said, err := parseDigest(s.layer.Digest)
	if err == nil && asked != nil && asked.String() != said.String() {
		err = fmt.Errorf("the image's file is asked for by the digest %s, and the manifest says %s", asked, said)
	}
	return said, err
}

// abort makes a Read that is under way, and every later one, return soon. Unlike the others it may
// be called from anywhere.
func (s *source) abort() { s.stop(context.Canceled) }

// Close ends the request under way.
func (s *source) Close() {
	if s.body != nil {
		s.disconnect(nil)
	}
	s.stop(nil)
}

func (s *source) disconnect(cause error) {
	if errors.Is(cause, io.EOF) {
		cause = io.ErrUnexpectedEOF
	}
	s.last = cause
	s.stall.Stop()
	s.cancel(nil)
	_ = s.body.Close()
	s.body = nil
}

// connect makes one request for the rest of the image. It returns an error only when there is no
// point in going on; when it left no body, the next call tries again.
func (s *source) connect() error {
	if err := s.pause(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	stall := time.AfterFunc(stallLimit, func() { cancel(errStalled) })
	response, err := s.request(ctx)
	if err == nil {
		err = s.accept(response, stall)
		if err != nil {
			_ = response.Body.Close()
		}
	}
	if err != nil {
		stall.Stop()
		if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
			err = cause
		}
		cancel(nil)
		if refused, ok := errors.AsType[*refusedError](err); ok {
			if !s.patient.Load() {
				return refused
			}
			err = refused.answer
		}
		if permanent, ok := errors.AsType[*permanentError](err); ok {
			return permanent
		}
		if s.ctx.Err() == nil { // else it says nothing of the server
			s.last = err
		}
		return nil
	}
	s.body, s.cancel, s.stall = response.Body, cancel, stall
	return nil
}

// pause waits before a request that follows a failed one. It gives up when too many in a row have
// brought nothing, and nothing was written yet.
func (s *source) pause() error {
	if s.ctx.Err() != nil {
		return s.ended()
	}
	if s.last == nil {
		return nil
	}
	switch s.fruitless++; {
	case s.fruitless == 1:
		s.since = time.Now()
	case s.fruitless > maxFruitless && !s.patient.Load():
		// The last error is not wrapped: what ends a connection early does not cut the image short.
		return fmt.Errorf("download %s: %d tries in a row brought nothing: %s", s.safeURL, maxFruitless, s.last.Error())
	default:
		s.waiting(s.why())
	}
	limit := min(retryCap, retryBase<<min(s.fruitless, 10))
	timer := time.NewTimer(rand.N(limit))
	defer timer.Stop()
	select {
	case <-s.ctx.Done():
		return s.ended()
	case <-timer.C:
		return nil
	}
}

// why says what is wrong with the server, for people.
func (s *source) why() string { return clip(fmt.Sprintf("%s: %v", s.safeURL, s.last)) }

// comes ends a time in which nothing has come.
func (s *source) comes() {
	s.waited += time.Since(s.since)
	if s.fruitless > 1 {
		s.waiting("")
	}
	s.fruitless = 0
}

// ended returns the cause of the end of ctx, and what the source was waiting for then.
func (s *source) ended() error {
	cause := context.Cause(s.ctx)
	if waited := time.Since(s.since); s.fruitless > 0 && waited >= longWait {
		return &waitedError{cause, waited, s.why()}
	}
	return cause
}

// waitedError is that the time was up while nothing came.
type waitedError struct {
	cause  error
	waited time.Duration
	why    string
}

func (e *waitedError) Error() string {
	return fmt.Sprintf("%v: it has waited %s for %s", e.cause, e.waited.Round(time.Second), e.why)
}

func (e *waitedError) Unwrap() error { return e.cause }

// longWaited returns a warning where the image did not come for long, all in all.
func (s *source) longWaited() error {
	if s.waited < longWait {
		return nil
	}
	return fmt.Errorf("the install waited %s for %s", s.waited.Round(time.Second), s.why())
}

// request asks for the rest of the image, and finds out before where a registry has it.
func (s *source) request(ctx context.Context) (*http.Response, error) {
	if s.url == "" {
		var err error
		if s.layer, err = s.oci.layer(ctx, s.fetch); err != nil {
			return nil, err
		}
		s.url = s.oci.url("blobs", s.layer.Digest)
	}
	header := http.Header{}
	header.Set("Accept-Encoding", "identity")
	if s.offset > 0 {
		end := "" // some servers know only ranges with an end
		if s.length > 0 {
			end = strconv.FormatInt(s.length-1, 10)
		}
		// No If-Range: mirrors behind one name give one file different tags. The digest is what holds
		// the parts together.
		header.Set("Range", fmt.Sprintf("bytes=%d-%s", s.offset, end))
	}
	return s.fetch(ctx, s.url, header)
}

// fetch makes one request. Where a registry wants a token, it gets one and asks again.
func (s *source) fetch(ctx context.Context, address string, header http.Header) (*http.Response, error) {
	response, err := s.fetchOnce(ctx, address, header)
	if err != nil || s.oci == nil || response.StatusCode != http.StatusUnauthorized {
		return response, err
	}
	_ = response.Body.Close()
	if s.token, err = s.oci.token(ctx, s.client, response.Header.Get("WWW-Authenticate")); err != nil {
		return nil, err
	}
	return s.fetchOnce(ctx, address, header)
}

func (s *source) fetchOnce(ctx context.Context, address string, header http.Header) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, &permanentError{"the image's URL makes no sense"}
	}
	for name, values := range header {
		request.Header[name] = values
	}
	if s.token != "" {
		// The client drops it when another host is named.
		request.Header.Set("Authorization", "Bearer "+s.token)
	}
	response, err := s.client.Do(request)
	return response, withoutURL(err)
}

// withoutURL takes the URL off an error of a client: it may hold a secret.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// accept checks that a response goes on at the offset. stall ends the request when it stands still.
func (s *source) accept(response *http.Response, stall *time.Timer) error {
	switch code := response.StatusCode; {
	case code == http.StatusOK:
		return s.acceptWhole(response, stall)
	case code == http.StatusPartialContent && s.offset > 0:
		first, total := parseContentRange(response.Header.Get("Content-Range"))
		switch {
		case first != s.offset:
			return &permanentError{"download " + s.safeURL + ": the server sent another part than was asked for"}
		case s.length < 0:
			s.length = total
		case total >= 0 && total != s.length:
			return s.changed()
		}
		return nil
	case code == http.StatusRequestedRangeNotSatisfiable && s.offset > 0 && s.length < 0:
		// The connection may have broken when all bytes were there, and only the end was not. Whether
		// they are the image, the digest says.
		if _, total := parseContentRange(response.Header.Get("Content-Range")); total != s.offset {
			return statusError("download "+s.safeURL, response)
		}
		_ = response.Body.Close()
		s.length, response.Body = s.offset, http.NoBody
		return nil
	default:
		return statusError("download "+s.safeURL, response)
	}
}

// acceptWhole takes a response that starts at the beginning: the first one, or that of a server
// that knows no ranges, whose bytes up to the offset are dropped. A length that does not fit is of
// a page of whatever stands in front of the server, or of an image that is being replaced.
func (s *source) acceptWhole(response *http.Response, stall *time.Timer) error {
	length := response.ContentLength // -1: it does not say
	if s.offset == 0 {
		s.length = length
		return nil
	}
	switch {
	case length < 0:
	case s.length < 0 && length < s.offset:
		return s.misfit(length, fmt.Sprintf("at least %d", s.offset))
	case s.length >= 0 && length != s.length:
		return s.misfit(length, strconv.FormatInt(s.length, 10))
	}
	// Dropping them may take as long as it took to read them.
	_, err := io.CopyN(io.Discard, moving{response.Body, stall}, s.offset)
	return err
}

func (s *source) misfit(length int64, wanted string) error {
	return &refusedError{"download " + s.safeURL, fmt.Errorf("the server sent a file of %d bytes, and the image has %s", length, wanted)}
}

func (s *source) changed() error {
	return &permanentError{"download " + s.safeURL + ": the image changed while it was being downloaded"}
}

// moving is a body whose request is not ended while bytes come.
type moving struct {
	body  io.Reader
	stall *time.Timer
}

func (m moving) Read(p []byte) (int, error) {
	n, err := m.body.Read(p)
	if n > 0 {
		m.stall.Reset(stallLimit)
	}
	return n, err
}

// parseContentRange reads "bytes FIRST-LAST/TOTAL" and "bytes */TOTAL"; -1 stands for what is not
// there.
func parseContentRange(value string) (first, total int64) {
	rest, ok := strings.CutPrefix(value, "bytes ")
	if !ok {
		return -1, -1
	}
	span, size, ok := strings.Cut(rest, "/")
	if !ok {
		return -1, -1
	}
	start, _, _ := strings.Cut(span, "-")
	return parseSize(start), parseSize(size)
}

func parseSize(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// permanentError is a failure that a repetition would meet again.
type permanentError struct{ message string }

func (e *permanentError) Error() string { return e.message }

// refusedError is that a server answers, and does not give what it was asked for. A repetition may
// get it: files are away while a mirror is brought up to date, and pages stand in for them.
type refusedError struct {
	doing  string
	answer error
}

func (e *refusedError) Error() string { return e.doing + ": " + e.answer.Error() }
