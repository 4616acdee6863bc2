package config_test

import (
	"strings"
	"testing"
	"time"
)

// TestBlankKeysAreNotSet: each of these keys with nothing in it, as of a variable that is set to
// nothing, means its default, and is not said to contradict another one.
func TestBlankKeysAreNotSet(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ content, environ string }{
		"the SSH key by a variable": {"", "IRONHERD_SSH_KEY_FILE="},
		"the SSH key by the file":   {"ssh: {key_file: \"\"}\n", ""},
		"a blank key of the file":   {"ssh: {key_file: }\n", "IRONHERD_SSH_KEY_FILE="},
		"no SSH key":                {"ssh:\n  key_file:\n", ""},
		"a path beside a URL":       {"database: {url: 'postgres://u@db/x'}\n", "IRONHERD_DATABASE_PATH="},
		"a blank path beside a URL": {"database: {url: 'postgres://u@db/x', path: }\n", ""},
		"a blank grace":             {"drain_timeout: 4s\nloops: {prober: {grace: }}\n", ""},
		"an endpoint by a variable": {"", "IRONHERD_INITIALIZER_ENDPOINT="},
		"a section of another kind": {"providers:\n- name: a\n  kind: static\n  static: {path: /dev/null}\n  equinix:\n", ""},
		"a blank anchor":            {"log: {level: &none }\nssh: {key_file: *none}\n", ""},
	} {
		c, err := load(t, minimal+test.content, test.environ)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if most := c.DrainTimeout / 2; c.DrainTimeout == 4*time.Second && c.Loops.Prober.Grace != most {
			t.Errorf("%s: %s, want %s", name, c.Loops.Prober.Grace, most)
		}
	}
	// A variable that takes away what the file names asks for no other key.
	for name, content := range map[string]string{
		"in a section": "dir: state\nssh: {key_file: /nowhere}\n",
		"by an anchor": "dir: state\nlog: {level: &key /nowhere}\nssh: {key_file: *key}\n",
	} {
		want := "environment IRONHERD_SSH_KEY_FILE: ssh.key_file: "
		if got := faults(t, minimal+content, "IRONHERD_SSH_KEY_FILE="); !strings.HasPrefix(got[len(got)-1], want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	// A fault of such a key is at its own place all the same.
	want := "environment IRONHERD_SESSION_LEASE: session.lease: \"\" is not a duration"
	if got := faults(t, minimal, "IRONHERD_SESSION_LEASE="); len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("%q, want %q", got, want)
	}
}
