package cli_test

import (
	"strings"
	"testing"
)

func TestCompletion(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	r := run(t, nil, "__complete", "--server", h.url, "machine", "show", "")
	if !strings.Contains(r.stdout, "herd-0001\tinstalled\n") {
		t.Errorf("got %q, %q", r.stdout, r.stderr)
	}
	if !strings.Contains(r.stdout, "\tcreating\n") {
		t.Errorf("what is on the second page is not offered: %q", r.stdout)
	}
	if r := run(t, nil, "__complete", "--server", h.url, "machine", "show", "herd"); !strings.Contains(r.stdout, "herd-0001") || strings.Contains(r.stdout, "creating") {
		t.Errorf("for herd: %q", r.stdout)
	}
	if r := run(t, nil, "completion", "bash"); r.code != 0 || !strings.Contains(r.stdout, "complete") {
		t.Errorf("got %d", r.code)
	}
}
