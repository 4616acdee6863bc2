package cli

import "testing"

// TestEndpointOfAWorld: the configuration that a world leaves is accepted, wherever its API is.
func TestEndpointOfAWorld(t *testing.T) {
	t.Parallel()
	for api, want := range map[string]string{
		"http://127.0.0.1:1/metal/v1": "127.0.0.1", "https://127.0.0.2:1/metal/v1": "127.0.0.1", "https://[::1]:1/metal/v1": "127.0.0.1",
		"https://[::]:1/metal/v1": "127.0.0.1", "https://192.0.2.5:1/metal/v1": "192.0.2.5", "https://[2001:db8::5]:1/metal/v1": "2001:db8::5",
	} {
		if got := endpointHost(api); got != want {
			t.Errorf("%s: %s, want %s", api, got, want)
		}
	}
}
