package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/sim"
	"github.com/ironherd/ironherd/test/freeport"
)

// Herd is a simulated world and a control plane, each a process of its own.
type Herd struct {
	// Ironherd is the path of the program.
	Ironherd string
	// Dir holds the files of both.
	Dir      string
	Machines int
	// WorldArgs are further arguments of `ironherd sim`.
	WorldArgs []string
	// PlaneArgs are further arguments of `ironherd serve`. They come last, and so override the others.
	PlaneArgs []string

	world, plane *Process
	url          string
	endpoint     string
	client       fleetv1connect.FleetServiceClient
}

// StartWorld starts or restarts the world, and waits until it is ready.
func (h *Herd) StartWorld(ctx context.Context) error {
	args := append([]string{
		"sim", "--dir", filepath.Join(h.Dir, "world"), "--machines", fmt.Sprint(h.Machines), "--image-size", "16",
	}, h.WorldArgs...)
	world, err := Start(ctx, h.Ironherd, args...)
	if err != nil {
		return err
	}
	h.world = world
	line, err := world.Await(ctx, "API:")
	if err != nil {
		return err
	}
	h.url = strings.TrimSpace(strings.TrimPrefix(line, "API:"))
	_, err = world.Await(ctx, "Control plane:")
	return err
}

// StartPlane starts or restarts the control plane, and does not wait until it is ready.
func (h *Herd) StartPlane(ctx context.Context) error {
	if h.endpoint == "" {
		var err error
		if h.endpoint, err = FreeAddress(ctx); err != nil {
			return err
		}
	}
	plane, err := Start(ctx, h.Ironherd, append([]string{"serve"}, h.planeArgs()...)...)
	h.plane = plane
	return err
}

// planeArgs are the arguments for the configuration that the world has written.
func (h *Herd) planeArgs() []string {
	return append([]string{
		"--config", h.Config(), "--log-level", "warn", "--set", "agent_api.listen=" + h.endpoint,
		"--set", "agent_api.endpoint=" + h.endpoint, "--set", "operator_api.listen=",
	}, h.PlaneArgs...)
}

// Endpoint returns where the control plane listens for agents, or "" before its first start.
func (h *Herd) Endpoint() string { return h.endpoint }

// Config returns the path of the configuration that the world has written for a control plane.
func (h *Herd) Config() string { return filepath.Join(h.Dir, "world", "ironherd.yaml") }

// URL returns where the world's API is.
func (h *Herd) URL() string { return h.url }

// AwaitPlane returns when the control plane is ready.
func (h *Herd) AwaitPlane(ctx context.Context) error {
	_, err := h.plane.Await(ctx, "ironherd test is ready")
	return err
}

// KillPlane kills the control plane with SIGKILL.
func (h *Herd) KillPlane() { h.plane.Kill() }

// KillWorld kills the world with SIGKILL.
func (h *Herd) KillWorld() { h.world.Kill() }

// Stop ends both in an orderly way. Both must end with exit code 0.
func (h *Herd) Stop(ctx context.Context) error {
	var errs []error
	for _, p := range []*Process{h.plane, h.world} {
		if p != nil {
			errs = append(errs, p.Stop(ctx))
		}
	}
	return errors.Join(errs...)
}

// Plane returns the control plane's process.
func (h *Herd) Plane() *Process { return h.plane }

// Attach makes a control plane that was started elsewhere that of the herd.
func (h *Herd) Attach(plane *Process) { h.plane = plane }

// World returns the world's process.
func (h *Herd) World() *Process { return h.world }

// Socket returns the operators' socket.
func (h *Herd) Socket() string { return filepath.Join(h.Dir, "world", "herd", "ironherd.sock") }

// Client returns a client of the operators' interface.
func (h *Herd) Client() fleetv1connect.FleetServiceClient {
	if h.client == nil {
		h.client = NewClient(h.Socket())
	}
	return h.client
}

// NewClient returns a client of the operators' interface on a socket. It keeps no connections.
func NewClient(socket string) fleetv1connect.FleetServiceClient {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	return fleetv1connect.NewFleetServiceClient(&http.Client{Transport: transport, Timeout: time.Minute}, "http://herd")
}

// CLI runs a command against the control plane, and returns its exit code and output.
func (h *Herd) CLI(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	return Run(ctx, h.Ironherd, append(args, "--server", "unix://"+h.Socket())...)
}

// Run runs a program to its end. The exit code is -1 when there is none.
func Run(ctx context.Context, path string, args ...string) (code int, stdout, stderr string) {
	var out, errOut strings.Builder
	command := exec.CommandContext(ctx, path, args...)
	command.Stdout, command.Stderr = &out, &errOut
	err := command.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, out.String(), errOut.String()
	case errors.As(err, &exit):
		return exit.ExitCode(), out.String(), errOut.String()
	}
	return -1, out.String(), err.Error()
}

// Status returns the world's status.
func (h *Herd) Status(ctx context.Context) (sim.Status, error) {
	var status sim.Status
	url := strings.TrimSuffix(h.url, "/metal/v1") + "/sim/v1/status"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return status, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(request)
	if err != nil {
		return status, fmt.Errorf("ask the world: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(body, &status)
	}
	if err != nil {
		return status, fmt.Errorf("ask the world: %w", err)
	}
	return status, nil
}

// AwaitInstalled returns when every machine is installed. It calls progress whenever the states of
// the machines have changed.
func (h *Herd) AwaitInstalled(ctx context.Context, progress func(string)) error {
	return h.AwaitState(ctx, "installed", h.Machines, progress)
}

// AwaitState returns when that many machines are in the state.
func (h *Herd) AwaitState(ctx context.Context, state string, machines int, progress func(string)) error {
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	last := ""
	for {
		summary, err := h.Client().GetSummary(ctx, &fleetv1.GetSummaryRequest{})
		if err == nil {
			if now := states(summary); now != last {
				progress(now)
				last = now
			}
			if inState(summary, state) >= int64(machines) {
				return nil
			}
		}
		select {
		case <-ticker.C:
		case <-h.plane.ended:
			return fmt.Errorf("the control plane ended: %w: %s", h.plane.err, h.plane.Stderr())
		case <-ctx.Done():
			world := "nothing, for there is none"
			if h.world != nil {
				world = h.world.Stderr()
			}
			return fmt.Errorf("not %s in time: %s (%w); the control plane says: %s; the world says: %s", state, last, err, h.plane.Stderr(), world)
		}
	}
}

func states(s *fleetv1.GetSummaryResponse) string {
	var parts []string
	for _, c := range s.GetStates() {
		if c.GetMachines() > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", c.GetState(), c.GetMachines()))
		}
	}
	return strings.Join(parts, ", ")
}

func inState(s *fleetv1.GetSummaryResponse, state string) int64 {
	for _, c := range s.GetStates() {
		if c.GetState() == state {
			return c.GetMachines()
		}
	}
	return 0
}

// FreeAddress returns an address of this host that nobody listens on. It stays free while a killed
// process is not yet restarted: see freeport.
func FreeAddress(ctx context.Context) (string, error) {
	port, err := freeport.Find(ctx)
	return fmt.Sprintf("127.0.0.1:%d", port), err
}
