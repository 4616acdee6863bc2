package provider

import (
	"net/http"
	"testing"
	"testing/synctest"
)

// TestRepeatsWhatHasNoBody, however its caller says that it has none.
func TestRepeatsWhatHasNoBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := failing(http.StatusServiceUnavailable, 0)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://provider.test/thing", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := newTestTransport(server, Limits{}, nil).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode != http.StatusOK || server.count() != 3 {
			t.Errorf("%s after %d requests", response.Status, server.count())
		}
	})
}
