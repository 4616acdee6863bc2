package cli

import (
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

func TestProcessors(t *testing.T) {
	t.Parallel()
	got := processors(&agentv1.HardwareReport{
		Cpus: []*agentv1.Cpu{{Model: "i9-12900K", Cores: 16, Threads: 22, CoreKinds: []*agentv1.CoreKind{
			{Name: "P-core", Cores: 8, Threads: 14}, {Name: "E-core", Cores: 8, Threads: 8},
		}}},
		OfflineThreads: 2, OfflineList: "14-15",
	})
	if want := "1 × i9-12900K, 16 cores, 22 threads (8 × P-core + 8 × E-core), 2 more offline (14-15)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
