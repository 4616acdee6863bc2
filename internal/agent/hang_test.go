package agent

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// TestTwoInstallsNeverRun: while an install that was given up still hangs, the next one is refused
// with the cause, and after it the next one runs.
func TestTwoInstallsNeverRun(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.host.prepare(f.t, initMessage(1, f.authority))
		data, hung := image(), make(chan struct{})
		images, first := imageClient(data), new(atomic.Bool)
		first.Store(true)
		f.options.HTTPClient = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if first.Swap(false) {
				<-hung // whatever becomes of the request
				return nil, errors.New("it was too late")
			}
			return images.Transport.RoundTrip(r)
		})}
		f.options.Reboot = func(context.Context) error { return nil }
		released := false
		var reports []*agentv1.InstallReport
		f.answer = func(_ int, request *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			if r := request.GetInstallReport(); r != nil && len(reports) < int(r.GetAttempt()) {
				reports = append(reports, r)
			}
			response := &agentv1.HeartbeatResponse{NextIntervalMs: 10_000}
			if len(reports) == 2 && !released {
				released = true
				close(hung) // it has ended by the next heartbeat
				return response, nil
			}
			if len(reports) < 3 {
				response.InstallRequest = installRequest(1, int32(len(reports)+1), data)
				response.InstallRequest.TimeoutMs = 60_000
			}
			return response, nil
		}
		f.start(f.t)
		after(10 * time.Minute)
		if len(reports) != 3 {
			f.t.Fatalf("reports: %v", reports)
		}
		if said := reports[1].GetError(); !strings.Contains(said, "nothing was written: an earlier install still waits for a disk") {
			f.t.Errorf("the second attempt ended with %q", said)
		}
		if !reports[2].GetOk() {
			f.t.Errorf("the third attempt: %v", reports[2])
		}
		f.end(f.t)
	})
}
