package cluster_test

import (
	"testing"
	"time"

	"github.com/ironherd/ironherd/test/cluster"
)

func TestStart(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	c, err := cluster.Start(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	t.Logf("ready after %v", time.Since(begin))
	requests, err := c.Requests()
	if err != nil || len(requests) == 0 {
		t.Fatalf("the audit log has %d requests, %v", len(requests), err)
	}
	if cpu, err := c.CPU(); err != nil || cpu <= 0 {
		t.Fatalf("CPU is %v, %v", cpu, err)
	}
}
