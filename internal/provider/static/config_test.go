package static

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCheckList: every fault of a host is told by a line of its own, once, and a list that nobody
// can read by one.
func TestCheckList(t *testing.T) {
	t.Parallel()
	many := "hosts:\n" + strings.Repeat("- {id: a/b}\n", maximumListFaults+3)
	for content, want := range map[string][]string{
		fiveHosts: nil,
		"hosts:\n- {id: a, address: 192.0.2.1, host_key: secret}\n- {id: b, address: nowhere}\n- {id: c, address: 192.0.2.3}\n": {
			`line 2: host "a": host_key must be a public key`, `line 3: host "b": address must be`,
		},
		"hosts: 7\n": {"line 1: hosts must be a list"},
		"":           {"it is empty"},
		many:         append(slices.Repeat([]string{"id must be"}, maximumListFaults), "3 more faults"),
		// every fault is told, and each once
		"- {id: a, address: 192.0.2.1}\n- {id: a, address: 192.0.2.2}\n- {id: b, address: 192.0.2.1}\n": {
			`lines 1 and 2: host "a" is listed twice`, `lines 1 and 3: hosts "a" and "b" have the same address 192.0.2.1`,
		},
		"- {id: a, address: 192.0.2.1}\n- {id: b, address: 192.0.2.2, hostname: a}\n- {id: d, address: 192.0.2.1}\n": {
			`lines 1 and 2: hosts "a" and "b" have the same hostname "a"`, `lines 1 and 3: hosts "a" and "d" have the same address 192.0.2.1`,
		},
		// also of what is listed a second time
		"- {id: a, address: 192.0.2.1}\n- {id: a, address: nowhere}\n- {id: a, address: 192.0.2.2}\n- {id: b, address: 192.0.2.2}\n": {
			`line 2: host "a": address must be`, `lines 1 and 2: host "a" is listed twice`, `lines 1 and 3: host "a" is listed twice`,
			`lines 3 and 4: hosts "a" and "b" have the same address 192.0.2.2`,
		},
		// many on one address are told by one line each
		"- {id: a, address: 192.0.2.1, port: 1}\n- {id: b, address: 192.0.2.1, port: 2}\n- {id: c, address: 192.0.2.1}\n" +
			"- {id: d, address: 192.0.2.1, port: 1}\n- {id: e, address: 192.0.2.1}\n": {
			`hosts "a" and "c" have`, `hosts "b" and "c" have`, `hosts "c" and "d" have`, `hosts "c" and "e" have`,
		},
	} {
		err := CheckList(writeList(t, content))
		var got []string
		if err != nil {
			got = strings.Split(err.Error(), "\n")
		}
		if !slices.EqualFunc(got, want, strings.Contains) {
			t.Errorf("of %.80q it says %q, want %q", content, got, want)
		}
	}
	if err := CheckList(filepath.Join(t.TempDir(), "nobody")); err == nil {
		t.Error("a list that is not there is right")
	}
}
