package install

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
)

// TestPageInTheMiddleOfADownload: what stands in front of the server answers with a page of its
// own, and with "200 OK", when the disk is wiped already. It is waited for like any other answer
// that is not the image.
func TestPageInTheMiddleOfADownload(t *testing.T) {
	t.Parallel()
	image := testImage(4, 4*mebibyte)
	for name, test := range map[string]struct {
		first  int64 // the length that the first answer names
		page   string
		length int64
		told   string
	}{
		"of another length":              {int64(len(image)), "<h1>down</h1>", 13, "a file of 13 bytes, and the image has 4194304"},
		"longer than the image":          {int64(len(image)), strings.Repeat("x", 5<<20), 5 << 20, "a file of 5242880 bytes, and the image has 4194304"},
		"while the length is not known":  {-1, "<h1>down</h1>", 13, "a file of 13 bytes, and the image has at least 2097152"},
		"without a length":               {int64(len(image)), "<h1>down</h1>", -1, "EOF"},
		"without a length, as the image": {-1, "<h1>down</h1>", -1, "EOF"},
	} {
		for _, ranges := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, ranges %v", name, ranges), func(t *testing.T) {
				t.Parallel()
				m := newMachine(t)
				request := requestFor("http://host/image", image)
				requests := 0
				told := ""
				synctest.Test(t, func(t *testing.T) {
					options := m.options()
					options.Waiting = func(why string) { told += why + "\n" }
					options.Client = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
						first := 0
						switch requests++; {
						case requests == 1:
							return &http.Response{StatusCode: 200, ContentLength: test.first, Body: brokenBody{bytes.NewReader(image[:2*mebibyte])}}, nil
						case requests < 40:
							return &http.Response{StatusCode: 200, ContentLength: test.length, Body: io.NopCloser(strings.NewReader(test.page))}, nil
						case !ranges:
							return &http.Response{StatusCode: 200, ContentLength: test.first, Body: io.NopCloser(bytes.NewReader(image))}, nil
						}
						if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &first); err != nil || first == 0 {
							t.Errorf("it asked for %q", r.Header.Get("Range"))
						}
						return &http.Response{
							StatusCode: 206, ContentLength: int64(len(image) - first), Body: io.NopCloser(bytes.NewReader(image[first:])),
							Header: http.Header{"Content-Range": {fmt.Sprintf("bytes %d-%d/%d", first, len(image)-1, len(image))}},
						}, nil
					})}
					if report := Run(t.Context(), request, options); !report.GetOk() {
						t.Fatalf("after %d requests: %s", requests, report.GetError())
					}
				})
				if !strings.Contains(told, test.told) || requests != 40 {
					t.Errorf("after %d requests it has told: %s", requests, told)
				}
				checkInstalled(t, m, image, request)
			})
		}
	}
}
