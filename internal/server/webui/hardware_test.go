package webui

import (
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

func TestCoreKinds(t *testing.T) {
	t.Parallel()
	cpu := &agentv1.Cpu{Model: "i9-12900K", Cores: 16, Threads: 24, CoreKinds: []*agentv1.CoreKind{
		{Name: "P-core", Cores: 8, Threads: 16}, {Name: "E-core", Cores: 8, Threads: 8},
	}}
	if got, want := cpus([]*agentv1.Cpu{cpu})[0].String(), "i9-12900K, 16 cores, 24 threads, 8 × P-core + 8 × E-core"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
