package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/inventory"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

const (
	// minInterval and maxInterval bound the interval between heartbeats that the control plane names.
	minInterval = 100 * time.Millisecond
	maxInterval = time.Hour
	// retryBase and retryCap bound the pause after a failed call.
	retryBase = 250 * time.Millisecond
	retryCap  = 30 * time.Second
	// inventoryEvery is the time between two inventories of the hardware. firstInventory is how long
	// the first heartbeat waits for the first one.
	inventoryEvery = 10 * time.Minute
	firstInventory = 2 * time.Second
	// rebootWait is how long a machine may take to go down before it is rebooted again.
	rebootWait = time.Minute
	// maxReason bounds what is told of why the machine is given back, in bytes.
	maxReason = 300
)

// refusedWaits are the pauses after refusals in a row. The last one applies to all further ones.
var refusedWaits = []time.Duration{
	200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	20 * time.Second, 40 * time.Second, time.Minute,
}

// Options are what Run needs of its machine.
type Options struct {
	// Root is put before every path; empty means "/".
	Root    string
	Version string
	// Logger must not be nil.
	Logger *slog.Logger
	// Reboot restarts the machine; nil: the kernel's own way, below Root.
	Reboot func(ctx context.Context) error
	// Dial connects to the control plane's endpoint; nil: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// HTTPClient fetches images; nil: a client of the agent's own.
	HTTPClient *http.Client
	// Ready is called once the agent is in charge; an error of it ends Run. May be nil.
	Ready func() error
	// Mode is where the agent lives; unspecified: in place.
	Mode agentv1.TakeoverMode
	// Log returns what is sent with the first heartbeat that is answered. May be nil.
	Log func() string
	// Contact is called after each heartbeat, with its error, and whether that was a refusal. May
	// be nil.
	Contact func(err error, refused bool)

	// network is what the agent in memory has carried over; nil: it lives in its own system.
	network *agentv1.Network
	// jumpForInstall is called for an install instead of writing a disk from the system that lives
	// on one. It returns only when the jump fails. Nil: this host's installs are done by this
	// agent.
	jumpForInstall func(ctx context.Context, store *takeover.Store, state *agentv1.AgentState, request *agentv1.InstallRequest) error
	// loadInstalled gives the kernel of the system on a disk to the running one, and startInstalled
	// starts it, and returns only when that fails. Nil: only a restart boots an installed system.
	loadInstalled  func(disk string) error
	startInstalled func(ctx context.Context) error
}

// givenBackError ends an agent in memory that was told to give the machine back.
type givenBackError struct{ reason string }

func (e *givenBackError) Error() string {
	return "the control plane gives the machine back: " + e.reason
}

// Run runs the agent that the last takeover of the host below Root has put in charge. It returns
// nil when ctx has ended or a newer takeover has replaced the agent. It fails with
// takeover.ErrAgentRunning when another agent runs there, and with takeover.ErrNoState when the
// host was never taken over.
func Run(ctx context.Context, options Options) error {
	if options.Root == "" {
		options.Root = "/"
	}
	if options.Reboot == nil {
		options.Reboot = func(context.Context) error { return rebootKernel(options.Root) }
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	hostLock, err := takeover.LockHost(options.Root, stop)
	if err != nil {
		return err
	}
	defer hostLock.Release()
	s, err := newSession(options)
	if err != nil {
		return err
	}
	defer s.link.drop()
	defer s.endInstall()
	if options.Ready != nil {
		if err := options.Ready(); err != nil {
			return fmt.Errorf("say that the agent is ready: %w", err)
		}
	}
	err = s.run(ctx)
	if errors.Is(err, takeover.ErrSuperseded) {
		s.log.Info("the agent was superseded and ends")
		return nil
	}
	return err
}

// session is one run of the agent. Only the goroutine of run uses it.
type session struct {
	options Options
	log     *slog.Logger
	store   *takeover.Store
	state   *agentv1.AgentState
	bootID  string
	link    *link

	interval time.Duration
	// spoke is when the last heartbeat was begun. One that only tells of progress comes no sooner than
	// progressInterval after it.
	spoke            time.Time
	progressInterval time.Duration
	// failures and refusals count the calls in a row that failed, and that were refused.
	failures, refusals int
	// admitted tells that a heartbeat was answered.
	admitted bool
	// heard is closed when the first answer has been obeyed. No install begins to write before.
	heard chan struct{}

	// collecting receives the report that is being collected. Nil: none is.
	collecting chan *agentv1.HardwareReport
	collected  time.Time
	// hardware is the report to be delivered, delivered the digest of the last one that was.
	hardware  *agentv1.HardwareReport
	delivered [sha256.Size]byte
	// rejected tells that the control plane did not accept hardware. It is sent again after the next
	// inventory.
	rejected bool

	// job is the running install, next the request that waits for its end.
	job  *job
	next *agentv1.InstallRequest
	// installing: an install runs, maybe one that was given up because its disk hangs.
	installing atomic.Bool
	// report is how the last install ended, until it is acknowledged.
	report *agentv1.InstallReport
	// jumpWarnings are of the jump for the running install.
	jumpWarnings []string
	// loaded: the kernel of what was installed last is loaded for kexec.
	loaded bool
}

func newSession(options Options) (*session, error) {
	s := &session{options: options, store: takeover.NewStore(options.Root), heard: make(chan struct{})}
	var err error
	if s.state, err = s.store.Load(); err != nil {
		return nil, err
	}
	if s.bootID, err = takeover.BootID(options.Root); err != nil {
		return nil, err
	}
	if options.Mode == agentv1.TakeoverMode_TAKEOVER_MODE_UNSPECIFIED {
		s.options.Mode = agentv1.TakeoverMode_TAKEOVER_MODE_IN_PLACE
	}
	if s.link, err = newLink(s.state, options.Version, options.Dial); err != nil {
		return nil, err
	}
	s.log = options.Logger.With(slog.String("machine", s.state.GetInit().GetMachineId()))
	s.setInterval(s.state.GetInit().GetHeartbeatIntervalMs())
	return s, s.resumeInstall()
}

// setInterval sets the interval between heartbeats, within bounds. Zero leaves it as it is.
func (s *session) setInterval(milliseconds int64) {
	if milliseconds > 0 {
		s.interval = max(minInterval, min(maxInterval, time.Duration(min(milliseconds, maxInterval.Milliseconds()))*time.Millisecond))
	}
}

// run sends heartbeats until ctx ends, the agent is superseded, or the machine is given back.
func (s *session) run(ctx context.Context) error {
	s.log.Info("the agent is in charge")
	s.resumePending(ctx)
	s.collect()
	s.awaitInventory(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		news := false
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case report := <-s.collecting:
			s.keepHardware(report)
			news = s.hardware != nil
			if !news {
				continue
			}
		case report := <-s.jobEnded():
			s.installEnded(ctx, report)
			news = true
		case <-s.jobProgressed():
			if early := s.progressInterval - time.Since(s.spoke); early > 0 && s.failures == 0 {
				timer.Reset(early) // never later than it was to be
				continue
			}
			news = true
		}
		if news && s.failures > 0 { // the next attempt carries it
			continue
		}
		wait, err := s.sendHeartbeat(ctx)
		if err != nil {
			return err
		}
		timer.Reset(wait)
	}
}

// sendHeartbeat sends one heartbeat and returns when the next one is due. Its only errors are
// ErrSuperseded and, in memory, givenBackError.
func (s *session) sendHeartbeat(ctx context.Context) (time.Duration, error) {
	if s.store.Superseded(s.state.GetInit()) {
		return 0, takeover.ErrSuperseded
	}
	if s.collecting == nil && s.job == nil && time.Since(s.collected) >= inventoryEvery {
		s.collect()
	}
	request := s.request()
	s.spoke = time.Now()
	response, err := s.link.heartbeat(ctx, request)
	if s.options.Contact != nil {
		s.options.Contact(err, status.Code(err) == codes.PermissionDenied)
	}
	if err != nil {
		return s.failed(ctx, err), nil
	}
	first := s.firstContact()
	if s.failures > 0 {
		s.log.Info("the control plane answers again", slog.Int("attempt", s.failures+1))
		// A failover may have lost what was delivered: the next inventory delivers it again.
		s.delivered = [sha256.Size]byte{}
	}
	s.failures, s.refusals = 0, 0
	s.setInterval(response.GetNextIntervalMs())
	s.progressInterval = min(s.interval, time.Duration(response.GetProgressIntervalMs())*time.Millisecond)
	if request.GetHardwareReport() != nil {
		s.delivered, s.hardware = inventory.Digest(s.hardware), nil
	}
	s.callOff(response.GetCancelInstall())
	err = s.handleResponse(ctx, request.GetInstallReport(), response.GetInstallRequest())
	if err != nil {
		return s.interval, err
	}
	if first {
		close(s.heard)
	}
	return s.interval, s.giveBack(response.GetLeaveMachine())
}

// giveBack ends the agent with givenBackError when the order is for it. It goes on while it has
// something to do or to report, and when an install has begun to write under this boot, because the
// disk may hold no system any more.
func (s *session) giveBack(order *agentv1.LeaveMachine) error {
	if order == nil {
		return nil
	}
	refused := ""
	state, err := s.store.Load()
	switch {
	case s.options.Mode != agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC:
		refused = "the agent is not in memory"
	case order.GetTakeoverGeneration() != s.state.GetInit().GetTakeoverGeneration():
		refused = "it is for another takeover"
	case s.job != nil || s.next != nil || s.report != nil:
		refused = "an install is not over"
	case err != nil:
		refused = err.Error()
	case !takeover.InCharge(state, s.state.GetInit()):
		return takeover.ErrSuperseded
	case state.GetFirstInstallBootId() == s.bootID:
		refused = "an install has begun to write a disk"
	}
	if refused != "" {
		s.log.Warn("the machine is not given back", slog.String("reason", order.GetReason()), slog.String("because", refused))
		return nil
	}
	s.log.Info("the machine is given back", slog.String("reason", order.GetReason()))
	return &givenBackError{reason: clean(order.GetReason())}
}

// clean bounds a text of the control plane, and makes it fit for a console.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

// firstContact forgets what was to be told once, after the first heartbeat that was answered. It
// returns whether this was the first one.
func (s *session) firstContact() (first bool) {
	if s.admitted {
		return false
	}
	s.admitted = true
	if s.state.GetReturned() == nil {
		return true
	}
	if err := s.update(func(state *agentv1.AgentState) { state.Returned = nil }); err != nil {
		s.log.Warn("what became of the last takeover cannot be forgotten", slog.Any("err", err))
	}
	return true
}

// request returns the next heartbeat.
func (s *session) request() *agentv1.HeartbeatRequest {
	request := &agentv1.HeartbeatRequest{
		MachineId:             s.state.GetInit().GetMachineId(),
		TakeoverGeneration:    s.state.GetInit().GetTakeoverGeneration(),
		BootId:                s.bootID,
		AgentVersion:          s.options.Version,
		InstallReport:         s.report,
		LastInstallGeneration: s.state.GetInstallGeneration(),
		LastInstallAttempt:    s.state.GetInstallAttempt(),
		Mode:                  s.options.Mode,
	}
	if s.options.Log != nil && !s.admitted {
		request.Log = strings.ToValidUTF8(s.options.Log(), "?")
	}
	if !s.rejected {
		request.HardwareReport = s.hardware
	}
	if s.job != nil {
		request.InstallProgress = s.job.progress()
	}
	return request
}

// failed counts a call that failed and returns how long to wait before the next one.
func (s *session) failed(ctx context.Context, err error) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	s.failures++
	code := status.Code(err)
	if s.failures&(s.failures-1) == 0 { // the first, second, fourth …
		s.log.Warn("a heartbeat failed", slog.Int("attempt", s.failures), slog.Any("err", err))
	}
	switch code {
	case codes.PermissionDenied:
		wait := refusedWaits[min(s.refusals, len(refusedWaits)-1)]
		s.refusals++
		return wait - wait/8 + rand.N(wait/4)
	case codes.InvalidArgument, codes.OutOfRange, codes.ResourceExhausted:
		s.rejected = s.hardware != nil
	case codes.Internal: // it was not decoded, perhaps
		s.rejected = s.hardware != nil
		s.link.drop()
	case codes.Aborted: // it came too often, or what it has said may be lost
	default:
		s.link.drop()
	}
	return minInterval + rand.N(min(retryCap, retryBase<<min(s.failures, 16)))
}

// collect starts an inventory of the hardware. It runs beside the heartbeats, because a drive may
// take long to answer.
func (s *session) collect() {
	found := make(chan *agentv1.HardwareReport, 1)
	s.collecting, s.collected = found, time.Now()
	go func() { found <- inventory.Collect(s.options.Root) }()
}

// awaitInventory waits a moment for the first report, so that the first heartbeat can carry it.
func (s *session) awaitInventory(ctx context.Context) {
	timer := time.NewTimer(firstInventory)
	defer timer.Stop()
	select {
	case report := <-s.collecting:
		s.keepHardware(report)
	case <-timer.C:
	case <-ctx.Done():
	}
}

// keepHardware keeps a report for delivery, unless an equal one was the last that was delivered.
func (s *session) keepHardware(report *agentv1.HardwareReport) {
	s.collecting, s.rejected = nil, false
	if inventory.Digest(report) == s.delivered {
		s.hardware = nil
		return
	}
	s.hardware = report
}

// update changes the state on the host, and what this session knows of it.
func (s *session) update(change func(*agentv1.AgentState)) error {
	state, err := s.store.Update(s.state.GetInit(), func(state *agentv1.AgentState) error {
		change(state)
		return nil
	})
	if err != nil {
		return err
	}
	s.state = state
	return nil
}

// rebooted reports whether the machine has been restarted since the last install was started.
func (s *session) rebooted() bool { return s.state.GetInstallBootId() != s.bootID }

// encodeReport returns the form in which a report is kept in the state.
func encodeReport(report *agentv1.InstallReport) []byte {
	data, _ := proto.Marshal(report) // its strings are valid
	return data
}
