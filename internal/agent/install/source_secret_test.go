package install

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
)

// TestErrorsTellNoQuery: a presigned URL, or one that a redirect names, is a secret. Errors go to
// history, log and page.
func TestErrorsTellNoQuery(t *testing.T) {
	t.Parallel()
	image := testImage(3, 4*mebibyte)
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	for name, answer := range map[string]func(r *http.Request) (*http.Response, error){
		"connection refused": func(*http.Request) (*http.Response, error) { return nil, refused },
		"redirected, and refused there": func(r *http.Request) (*http.Response, error) {
			if r.URL.Host != "host" {
				return nil, refused
			}
			return &http.Response{
				StatusCode: 302, Status: "302 Found", Body: http.NoBody, Header: http.Header{"Location": {"http://mirror/image?signature=hush"}},
			}, nil
		},
		"redirected for ever": func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 302, Status: "302 Found", Body: http.NoBody, Header: http.Header{"Location": {r.URL.String() + "hush"}}}, nil
		},
		"cut again and again": func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("Range") != "" {
				return nil, refused
			}
			return &http.Response{StatusCode: 200, ContentLength: int64(len(image)), Body: brokenBody{bytes.NewReader(image[:mebibyte])}}, nil
		},
		"forbidden": func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 403, Status: "403 Forbidden", Body: http.NoBody}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			synctest.Test(t, func(t *testing.T) {
				options := m.options()
				options.Client = &http.Client{Transport: roundTripper(answer)}
				report := Run(t.Context(), requestFor("http://ada:hush@host/image?signature=hush", image), options)
				if report.GetOk() || !strings.Contains(report.GetError(), "host/image") || strings.Contains(report.GetError(), "hush") {
					t.Errorf("report: %v", report)
				}
			})
		})
	}
}

// A URL with a secret is not told to the host that it redirects to.
func TestRedirectsTellNoQuery(t *testing.T) {
	t.Parallel()
	told := make(chan string, 1)
	mirror := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { told <- fmt.Sprint(r.Header) }))
	defer mirror.Close()
	files := httptest.NewTLSServer(http.RedirectHandler(mirror.URL+"/image", http.StatusFound))
	defer files.Close()
	client := NewClient()
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // who it is does not matter here
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, files.URL+"/image?signature=hush", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	client.CloseIdleConnections()
	if headers := <-told; strings.Contains(headers, "hush") {
		t.Errorf("the mirror was told %s", headers)
	}
}

// The disk keeps what is written to it when another one has the machine.
func TestTheDiskHoldsNoURL(t *testing.T) {
	t.Parallel()
	image := testImage(2, 4*mebibyte)
	m := newMachine(t)
	request := requestFor(serveBytes(t, image)+"?signature=hush", image)
	report := Run(t.Context(), request, m.options())
	if at := bytes.Index(m.content(t), []byte("hush")); !report.GetOk() || at >= 0 {
		t.Errorf("the secret is at %d of the disk, whose first-boot area begins at %d: %v", at, FirstBootOffset(diskSize), report)
	}
	if !strings.Contains(request.GetImage().GetUrl(), "hush") {
		t.Error("the request has lost its secret")
	}
}
