package network

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestBlockedMembersAreNotCarried: a bridge is made again without a spanning tree protocol, and a
// member that the protocol had blocked would close a loop.
func TestBlockedMembersAreNotCarried(t *testing.T) {
	t.Parallel()
	const forwarding, blocking, listening = "3\n", "4\n", "1\n"
	for name, test := range map[string]struct {
		stp             string
		states, carried []string // of eth0, eth1 …
	}{
		"no protocol":             {"0\n", []string{forwarding, blocking}, []string{"eth0", "eth1"}},
		"the kernel's":            {"1\n", []string{blocking, forwarding, forwarding}, []string{"eth1", "eth2"}},
		"a daemon's":              {"2\n", []string{forwarding, blocking}, []string{"eth0"}},
		"none forwards yet":       {"1\n", []string{listening, listening}, []string{"eth0"}},
		"one has no link":         {"1\n", []string{"0\n", listening}, []string{"eth1"}},
		"no members":              {"1\n", nil, nil},
		"nothing is known of it":  {"", []string{"", ""}, []string{"eth0", "eth1"}},
		"nothing is known of one": {"1\n", []string{forwarding, ""}, []string{"eth0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sys := t.TempDir()
			write := func(path, text string) {
				if text == "" {
					return
				}
				path = filepath.Join(sys, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("br0/bridge/stp_state", test.stp)
			all := []string{"eth0", "eth1", "eth2"}[:len(test.states)]
			for i, state := range test.states {
				write(all[i]+"/brport/state", state)
			}
			c := &capture{sys: sys}
			if carried := c.bridged("br0", all); !slices.Equal(carried, test.carried) || (len(c.warnings) > 0) != (len(all) > 0 && test.stp > "0\n") {
				t.Errorf("carries %q and warns %q, want %q", carried, c.warnings, test.carried)
			}
		})
	}
}
