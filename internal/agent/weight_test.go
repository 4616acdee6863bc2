package agent

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// BenchmarkAgents runs many agents in one process over loopback and reports what one costs, its
// server's side included: memory while idle, and processor time from the start to the first
// heartbeat.
func BenchmarkAgents(b *testing.B) {
	const agents = 500
	authority := newAuthority(b)
	hosts := make([]*host, agents)
	for b.Loop() {
		p := newPlane(b, authority)
		p.answer = func(int, *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			return &agentv1.HeartbeatResponse{NextIntervalMs: 3_600_000}, nil
		}
		endpoint := p.listen(b)
		for i := range hosts {
			hosts[i] = newHost(b)
			init := initMessage(1, authority)
			init.Endpoint = endpoint
			hosts[i].prepare(b, init)
		}
		heapBefore, cpuBefore := heap(), cpu()
		goroutines := runtime.NumGoroutine()
		ctx, stop := context.WithCancel(b.Context())
		var group sync.WaitGroup
		for _, h := range hosts {
			group.Go(func() {
				_ = Run(ctx, Options{Root: h.root, Version: "v1", Logger: slog.New(slog.DiscardHandler)})
			})
		}
		ticker := time.NewTicker(10 * time.Millisecond)
		for len(p.seen()) < agents {
			<-ticker.C
		}
		ticker.Stop()
		b.ReportMetric(float64(cpu()-cpuBefore)/agents/1e6, "cpu-ms/agent")
		b.ReportMetric(float64(heap()-heapBefore)/agents/1024, "KiB/agent")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/agents, "goroutines/agent")
		stop()
		group.Wait()
		p.server.Stop()
	}
}

// heap returns what heap and stacks have in use after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapInuse + stats.StackInuse)
}

// cpu returns the processor time that this process has used, in nanoseconds.
func cpu() int64 {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return usage.Utime.Nano() + usage.Stime.Nano()
}
