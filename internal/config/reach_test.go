package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEndpointThatOnlyThisHostReaches: machines elsewhere that are told to call localhost call
// themselves. The sample names it, because it has no machines.
func TestEndpointThatOnlyThisHostReaches(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/ironherd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const hostKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBQiqDqyCzdPKhcxYpfVWdbjSCfvHSdXhUwIbAzAZwvQ"
	sample := string(text) + "initializer: {agent_executable: /dev/null}\n"
	listed := func(hosts string) string {
		list := filepath.Join(t.TempDir(), "hosts.yaml")
		if err := os.WriteFile(list, []byte("hosts:\n"+hosts), 0o600); err != nil {
			t.Fatal(err)
		}
		return "providers: [{name: rack, kind: static, static: {path: " + list + "}}]\n"
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-token-that-nobody-guesses"), 0o600); err != nil {
		t.Fatal(err)
	}
	bought := func(url string) string {
		return "providers: [{name: metal, kind: equinix, equinix: {project: 7b1d6e0a-5f2c-4c7e-9a51-0c8f4a6f7d11, ssh_key_label: h, " +
			"device_prefix: h, operating_system: d, token_file: " + token + ", api_url: '" + url + "'}}]\n"
	}
	const fetched = "providers: [{name: rack, kind: static, static: {url: 'URL'}}]\n"
	const here, elsewhere = "  - {id: a, address: 127.0.0.1}\n", "  - {id: b, address: 192.0.2.1}\n"
	const told = `agent_api.endpoint: must be an address that machines can reach, not "localhost:8443", where each machine finds itself: providers[0] has `
	endpoint := func(name string) string { return strings.Replace(sample, "localhost:8443", name+":8443", 1) }
	initializer := func(sample, endpoint string) string {
		return strings.Replace(sample, "/dev/null", "/dev/null, endpoint: '"+endpoint+"'", 1)
	}
	for name, test := range map[string]struct{ content, want string }{
		"no provider":        {sample, ""},
		"no host":            {sample + listed("  []\n"), ""},
		"this host":          {sample + listed(here+"  - {id: c, address: '::1'}\n"), ""},
		"one elsewhere":      {sample + listed(here+elsewhere), told + "host b at 192.0.2.1"},
		"one in the network": {sample + listed("  - {id: b, address: '2001:db8::1'}\n"), told + "host b at 2001:db8::1"},
		"behind a jump host": {
			sample + listed("  - {id: c, address: 127.0.0.1, jump: {address: 192.0.2.1, host_key: "+hostKey+"}}\n"),
			told + "host c at 127.0.0.1",
		},
		"one that is not used":   {sample + listed(here+"  - {id: b, address: 192.0.2.1, port: 0}\n"), ""},
		"no list":                {sample + listed("x"), ""},
		"a list elsewhere":       {sample + strings.Replace(fetched, "URL", "https://lists.example/hosts", 1), told + "its list at lists.example"},
		"a list on this host":    {sample + strings.Replace(fetched, "URL", "http://127.0.0.1:1/hosts", 1), ""},
		"an API elsewhere":       {sample + bought("https://api.example/metal/v1"), told + "its API at api.example"},
		"an API at any address":  {sample + bought("https://[::]:1/"), ""},
		"an API on this host":    {sample + bought("http://127.0.0.1:1/"), ""},
		"nobody is told":         {sample + "roles: [janitor]\n" + listed(elsewhere), ""},
		"an address":             {endpoint("herd.example") + listed(elsewhere), ""},
		"the initializer alone":  {sample + listed(elsewhere) + "roles: [initializer]\n", told + "host b at 192.0.2.1"},
		"it tells another one":   {initializer(sample, "herd.example:1") + listed(elsewhere) + "roles: [initializer]\n", ""},
		"installed systems call": {initializer(sample, "herd.example:1") + listed(elsewhere), told + "host b at 192.0.2.1"},
		"it tells a worse one": {
			initializer(endpoint("herd.example"), "localhost:1") + listed(elsewhere),
			`initializer.endpoint: must be an address that machines can reach, not "localhost:1", where each machine finds itself: providers[0] has host b at 192.0.2.1`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.want == "" {
				if _, err := load(t, test.content); err != nil {
					t.Error(err)
				}
				return
			}
			if got := faults(t, test.content); len(got) != 1 || !strings.HasSuffix(got[0], ": "+test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
