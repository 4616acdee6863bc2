package command_test

import (
	"strings"
	"testing"
)

// TestWithoutEtcd: what needs etcd says which endpoint does not answer, and why.
func TestWithoutEtcd(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"status"},
		{"node", "list"},
		{"node", "register"},
		{"node", "remove", "n3", "--stopped"},
		{"prune", "approve", "6d44c1b1f1a14b7c", "--reason", "x"},
		{"prune", "withdraw"},
		{"resume", "all"},
		{"unforce", "all"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			p := &program{t: t, env: []string{"IRONHERD_RECONCILER_ETCD_ENDPOINTS=http://127.0.0.1:9"}}
			_, said := p.run(7, args...)
			contains(t, "without etcd", said, "http://127.0.0.1:9: nobody listens there")
		})
	}
}
