package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// breaking serves data in pieces: each connection is cut after a while.
func breaking(data []byte, piece int, ranges bool, requests *[]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		*requests = append(*requests, r.Header.Get("Range"))
		first := 0
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &first); err == nil && ranges {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, len(data)-1, len(data)))
			w.Header().Set("Content-Length", fmt.Sprint(len(data)-first))
			w.WriteHeader(http.StatusPartialContent)
		} else {
			first = 0
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		}
		end := min(len(data), piece*len(*requests))
		_, _ = w.Write(data[first:end])
		if end < len(data) {
			panic(http.ErrAbortHandler)
		}
	}
}

func TestDownloadResumes(t *testing.T) {
	t.Parallel()
	for _, ranges := range []bool{true, false} {
		t.Run(fmt.Sprintf("ranges=%v", ranges), func(t *testing.T) {
			t.Parallel()
			image := testImage(2, 4*mebibyte)
			m := newMachine(t)
			var requests []string
			request := requestFor(serve(t, breaking(image, 3<<19, ranges, &requests)), image)
			if report := Run(t.Context(), request, m.options()); !report.GetOk() {
				t.Fatal(report.GetError())
			}
			checkInstalled(t, m, image, request)
			if len(requests) != 3 || requests[0] != "" || !strings.HasPrefix(requests[2], "bytes=") {
				t.Errorf("requests: %q", requests)
			}
		})
	}
}

// brokenBody brings its data and then breaks.
type brokenBody struct{ io.Reader }

func (b brokenBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (brokenBody) Close() error { return nil }

func TestTruncatedDownloadFails(t *testing.T) {
	t.Parallel()
	image := testImage(3, 4*mebibyte)
	m := newMachine(t)
	synctest.Test(t, func(t *testing.T) {
		options := m.options()
		options.Client = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("Range") != "" {
				return &http.Response{StatusCode: 503, Status: "503 Service Unavailable", Body: http.NoBody}, nil
			}
			body := brokenBody{bytes.NewReader(image[:3*mebibyte])}
			return &http.Response{StatusCode: 200, ContentLength: int64(len(image)), Body: body}, nil
		})}
		report := Run(t.Context(), requestFor("http://host/image", image), options)
		if report.GetOk() || !strings.Contains(report.GetError(), "did not end within") || !strings.Contains(report.GetError(), "503") {
			t.Errorf("report: %v", report)
		}
	})
	m.mustNotBoot(t)
}

// away answers requests for an image in the middle of which the server goes away for a while, or
// answers that it does not have it (404).
func away(image []byte, piece int, long time.Duration, status404 bool) *http.Client {
	var gone time.Time
	return &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		first, status := 0, http.StatusOK
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &first); err == nil {
			status = http.StatusPartialContent
		}
		switch {
		case gone.IsZero():
			gone = time.Now()
			return &http.Response{StatusCode: 200, ContentLength: int64(len(image)), Body: brokenBody{bytes.NewReader(image[:piece])}}, nil
		case time.Since(gone) < long && status404:
			return &http.Response{StatusCode: 404, Status: "404 Not Found", Body: http.NoBody}, nil
		case time.Since(gone) < long:
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		}
		return &http.Response{
			StatusCode: status, ContentLength: int64(len(image) - first), Body: io.NopCloser(bytes.NewReader(image[first:])),
			Header: http.Header{"Content-Range": {fmt.Sprintf("bytes %d-%d/%d", first, len(image)-1, len(image))}},
		}, nil
	})}
}

// TestServerThatIsAwayForAWhile: when the disk is wiped there is nothing to go back to, so the
// install waits for the image server as long as it may last, and says so meanwhile and afterwards.
func TestServerThatIsAwayForAWhile(t *testing.T) {
	t.Parallel()
	image := testImage(3, 4*mebibyte)
	const refused = "http://host/image: dial tcp: connection refused"
	for name, test := range map[string]struct {
		piece     int
		status404 bool
		told      string
		// asking is how long it takes until the disk may be wiped.
		asking time.Duration
	}{
		"right after the beginning": {mebibyte, false, refused, 0},
		"in the middle":             {3 * mebibyte, false, refused, 0},
		"without the image":         {3 * mebibyte, true, `http://host/image: the server says "404 Not Found"`, 0},
		"while it asks":             {mebibyte, true, `http://host/image: the server says "404 Not Found"`, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			request := requestFor("http://host/image?signature=hush", image)
			request.TimeoutMs = (10 * time.Minute).Milliseconds()
			synctest.Test(t, func(t *testing.T) {
				options := m.options()
				options.Client = away(image, test.piece, 5*time.Minute, test.status404)
				options.Begin = func(context.Context, *agentv1.BegunDisk) error { time.Sleep(test.asking); return nil }
				var told []string
				options.Waiting = func(why string) {
					if len(told) == 0 || told[len(told)-1] != why {
						told = append(told, why)
					}
				}
				report := Run(t.Context(), request, options)
				if !report.GetOk() {
					t.Fatal(report.GetError())
				}
				if want := []string{test.told, ""}; !slices.Equal(told, want) {
					t.Errorf("told %q, want %q", told, want)
				}
				if w := report.GetWarnings(); len(w) != 1 || !strings.HasPrefix(w[0], "the install waited 5m") ||
					!strings.HasSuffix(w[0], "s for "+test.told) {
					t.Errorf("warnings: %q", w)
				}
			})
			checkInstalled(t, m, image, request)
		})
	}
}

// TestServerThatStaysAway: the install ends when its time is up, and says what it has waited for.
func TestServerThatStaysAway(t *testing.T) {
	t.Parallel()
	image := testImage(3, 4*mebibyte)
	m := newMachine(t)
	synctest.Test(t, func(t *testing.T) {
		options := m.options()
		options.Client = away(image, 3*mebibyte, time.Hour, false)
		request := requestFor("http://host/image", image)
		request.TimeoutMs = time.Minute.Milliseconds()
		report := Run(t.Context(), request, options)
		if report.GetOk() || report.GetError() != "the install did not end within 1m0s: it has waited 1m0s for http://host/image: dial tcp: connection refused" {
			t.Errorf("report: %v", report)
		}
	})
	m.mustNotBoot(t)
}

// TestServerThatIsNotThere: before anything is wiped, an install does not wait long.
func TestServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	synctest.Test(t, func(t *testing.T) {
		options := m.options()
		options.Client = &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED })}
		report := Run(t.Context(), requestFor("http://host/image", nil), options)
		if report.GetOk() || !strings.HasSuffix(report.GetError(), "download http://host/image: 8 tries in a row brought nothing: connection refused") {
			t.Errorf("report: %v", report)
		}
	})
	if !bytes.Equal(m.content(t), m.old) {
		t.Error("the disk was touched")
	}
}

// TestCutAtTheVeryEnd: all bytes are there, and what says so is not. A server that is asked for
// what follows says that nothing does, and how many bytes there are.
func TestCutAtTheVeryEnd(t *testing.T) {
	t.Parallel()
	image := testImage(3, 4*mebibyte)
	cut := func(data []byte) io.ReadCloser { return brokenBody{bytes.NewReader(data)} }
	unsatisfiable := func(total int) *http.Response {
		return &http.Response{
			StatusCode: 416, Status: "416 Requested Range Not Satisfiable", Body: http.NoBody,
			Header: http.Header{"Content-Range": {fmt.Sprintf("bytes */%d", total)}},
		}
	}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	//nolint:bodyclose // what cannot be satisfied has no body
	for name, test := range map[string]struct {
		// answers follow each other; the last one is repeated.
		answers  []*http.Response
		asked    []string
		error    string
		warnings int
	}{
		"there is no more": {
			[]*http.Response{{StatusCode: 200, ContentLength: -1, Body: cut(image)}, unsatisfiable(len(image))},
			[]string{"", "bytes=4194304-"},
			"", 0,
		},
		"after a long wait": {
			append(append([]*http.Response{{StatusCode: 200, ContentLength: -1, Body: cut(image)}}, make([]*http.Response, 50)...), unsatisfiable(len(image))),
			nil, "", 1,
		},
		"another image": {
			[]*http.Response{{StatusCode: 200, ContentLength: -1, Body: cut(testImage(5, 4*mebibyte))}, unsatisfiable(len(image))},
			nil, "digest", 0,
		},
		"there is less": {
			[]*http.Response{{StatusCode: 200, ContentLength: -1, Body: cut(image)}, unsatisfiable(mebibyte)},
			[]string{"", "bytes=4194304-"},
			`the server says "416 Requested Range Not Satisfiable"`, 0,
		},
		"in a part whose whole is known": {
			[]*http.Response{
				{StatusCode: 200, ContentLength: -1, Body: cut(image[:3*mebibyte])},
				{
					StatusCode: 206, ContentLength: -1, Body: cut(image[3*mebibyte:]),
					Header: http.Header{"Content-Range": {"bytes 3145728-4194303/4194304"}},
				},
			},
			[]string{"", "bytes=3145728-"},
			"", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			request := requestFor("http://host/image", image)
			request.TimeoutMs = (10 * time.Minute).Milliseconds()
			var asked, told []string
			synctest.Test(t, func(t *testing.T) {
				options := m.options()
				options.Waiting = func(why string) { told = append(told, why) }
				options.Client = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
					answer := test.answers[min(len(asked), len(test.answers)-1)]
					asked = append(asked, r.Header.Get("Range"))
					if answer == nil {
						return nil, refused
					}
					return answer, nil
				})}
				report := Run(t.Context(), request, options)
				if report.GetOk() != (test.error == "") || !strings.Contains(report.GetError(), test.error) || len(report.GetWarnings()) != test.warnings {
					t.Errorf("report: %v", report)
				}
			})
			if test.asked != nil && !slices.Equal(asked, test.asked) {
				t.Errorf("asked for %q", asked)
			}
			if len(told) > 0 && told[len(told)-1] != "" {
				t.Errorf("it waits to the end: %q", told)
			}
			if test.error != "" {
				m.mustNotBoot(t)
				return
			}
			checkInstalled(t, m, image, request)
		})
	}
}

// TestImageChangedMeanwhile: another image takes the place of the one that is being downloaded. One
// of another length is noticed at once, another one by the digest.
func TestImageChangedMeanwhile(t *testing.T) {
	t.Parallel()
	image := testImage(4, 2*mebibyte)
	for name, test := range map[string]struct {
		other []byte
		error string
	}{
		"longer":        {testImage(5, 3*mebibyte), "changed while"},
		"as long":       {testImage(5, 2*mebibyte), "digest"},
		"the very same": {image, ""}, // of a mirror that gives it another tag
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			request := requestFor(serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("ETag", fmt.Sprintf("%q", r.Header.Get("Range")))
				if r.Header.Get("Range") != "" {
					http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(test.other))
					return
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(image)))
				_, _ = w.Write(image[:mebibyte+mebibyte/2])
				panic(http.ErrAbortHandler)
			}), image)
			report := Run(t.Context(), request, m.options())
			if report.GetOk() != (test.error == "") || !strings.Contains(report.GetError(), test.error) {
				t.Errorf("report: %v", report)
			}
			if test.error != "" {
				m.mustNotBoot(t)
				return
			}
			checkInstalled(t, m, image, request)
		})
	}
}

// TestMirrorWithoutLength: a mirror that does not say how long the image is has it all the same.
func TestMirrorWithoutLength(t *testing.T) {
	t.Parallel()
	image := testImage(4, 2*mebibyte)
	for name, lengths := range map[string][2]int64{"first": {-1, 2 * mebibyte}, "then": {2 * mebibyte, -1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			request := requestFor("http://host/image", image)
			synctest.Test(t, func(t *testing.T) {
				options := m.options()
				requests := 0
				options.Client = &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
					body := io.NopCloser(bytes.NewReader(image))
					if requests++; requests == 1 {
						body = brokenBody{bytes.NewReader(image[:mebibyte+mebibyte/2])}
					}
					return &http.Response{StatusCode: 200, ContentLength: lengths[min(requests, 2)-1], Body: body}, nil
				})}
				if report := Run(t.Context(), request, options); !report.GetOk() {
					t.Error(report.GetError())
				}
			})
			checkInstalled(t, m, image, request)
		})
	}
}

func TestPermanentAnswerIsNotRepeated(t *testing.T) {
	t.Parallel()
	requests := 0
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.WriteHeader(http.StatusNotFound)
	})
	report := Run(t.Context(), requestFor(url+"?token=hush", nil), newMachine(t).options())
	if !strings.Contains(report.GetError(), "404") || strings.Contains(report.GetError(), "hush") || requests != 1 {
		t.Errorf("%d requests, report: %v", requests, report)
	}
}

// A disk that fails ends the install at once, although the download stands still.
func TestDiskFailureEndsTheDownload(t *testing.T) {
	t.Parallel()
	source, err := newSource(t.Context(), NewClient(), serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte{1}, mebibyte+chunkSize))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	file, err := os.Open(os.DevNull) // not open for writing
	if err != nil {
		t.Fatal(err)
	}
	s := &stream{
		raw: source, abort: source.abort, limit: 10 * mebibyte, disk: &disk{file: file, medium: fileMedium{File: file}, size: diskSize},
		head: make([]byte, 0, mebibyte), progress: func(int64) {},
	}
	started := time.Now()
	if err := s.run(t.Context()); err == nil || !strings.Contains(err.Error(), "write the disk") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(started); took > stallLimit/2 {
		t.Errorf("it took %s", took)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// silent is a body that brings nothing until its request ends.
type silent struct{ ctx context.Context }

func (s silent) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

func (silent) Close() error { return nil }

func TestStalledDownloadIsAskedForAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		client := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if requests++; requests < 3 {
				return &http.Response{StatusCode: 200, ContentLength: 3, Body: silent{r.Context()}}, nil
			}
			return &http.Response{StatusCode: 200, ContentLength: 3, Body: io.NopCloser(strings.NewReader("abc"))}, nil
		})}
		started := time.Now()
		source, err := newSource(t.Context(), client, "http://host/image")
		if err != nil {
			t.Fatal(err)
		}
		defer source.Close()
		data, err := io.ReadAll(source)
		if string(data) != "abc" || err != nil || time.Since(started) < 2*stallLimit {
			t.Errorf("%q, %v after %s", data, err, time.Since(started))
		}
	})
}

// trickle is a body that brings a byte a second.
type trickle struct {
	ctx  context.Context
	data []byte
}

func (b *trickle) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Second):
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
	if len(b.data) == 0 {
		return 0, io.EOF
	}
	p[0], b.data = b.data[0], b.data[1:]
	return 1, nil
}

func (*trickle) Close() error { return nil }

// TestSlowServerWithoutRanges: what a server sends again takes longer than a download may stand
// still.
func TestSlowServerWithoutRanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		image := testImage(5, 3*int(stallLimit/time.Second))
		requests := 0
		client := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			end := len(image)
			if requests++; requests == 1 {
				end = 2 * len(image) / 3
			}
			return &http.Response{StatusCode: 200, ContentLength: int64(len(image)), Body: &trickle{r.Context(), image[:end]}}, nil
		})}
		source, err := newSource(t.Context(), client, "http://host/image")
		if err != nil {
			t.Fatal(err)
		}
		defer source.Close()
		if data, err := io.ReadAll(source); !bytes.Equal(data, image) || err != nil || requests != 2 {
			t.Errorf("%d bytes by %d requests, %v", len(data), requests, err)
		}
	})
}
