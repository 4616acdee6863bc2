package provider

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// TestAnswersShareNoBuffer: an answer that was closed, even twice, takes nothing from those that
// are still read.
func TestAnswersShareNoBuffer(t *testing.T) {
	t.Parallel()
	server := &stubServer{answer: func(number int, _ *http.Request) (*http.Response, error) {
		return reply(http.StatusOK, strings.Repeat(strconv.Itoa(number), 10_000)), nil
	}}
	transport := newTestTransport(server, Limits{}, nil)
	ask := func() *http.Response {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://provider.test/thing", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	first := ask()
	_, _ = first.Body.Close(), first.Body.Close()
	if n, err := first.Body.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("a closed answer was read: %d bytes, %v", n, err)
	}
	second, third := ask(), ask() //nolint:bodyclose // each is closed when it was read
	for want, response := range map[string]*http.Response{"2": second, "3": third} {
		text, err := io.ReadAll(response.Body)
		if err != nil || string(text) != strings.Repeat(want, 10_000) {
			t.Errorf("answer %s begins with %.5s, and has %d bytes: %v", want, text, len(text), err)
		}
		_ = response.Body.Close()
	}
}
