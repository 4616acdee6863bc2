package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/install"
	"github.com/ironherd/ironherd/internal/agent/inventory"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

// progressEvery is how often a running install may cause a heartbeat.
const progressEvery = time.Second

var (
	errReplaced = errors.New("the install was replaced by a newer request")
	errStopped  = errors.New("the agent was stopped while it was installing")
)

const restartedMessage = "the agent was restarted while it was installing"

// diskUnknown is the disk of a report of which nobody knows whether anything was written.
const diskUnknown = "unknown"

// job is an install that is running.
type job struct {
	request *agentv1.InstallRequest
	cancel  context.CancelCauseFunc
	// ended receives the report when the install has ended.
	ended chan *agentv1.InstallReport
	// progressed receives when there is progress to send.
	progressed chan struct{}

	// loaded says that the kernel of the installed system is loaded. It is written before the report
	// is sent.
	loaded bool

	phase atomic.Int32
	done  atomic.Int64
	// waiting is why the image does not come; nil or empty: it comes.
	waiting atomic.Pointer[string]
	// notified is when progressed was last sent to, in nanoseconds since the start.
	notified atomic.Int64
}

// startJob runs the request in a goroutine of its own. The install gets the values of ctx, but does
// not end with it: cancel ends it. Where there is a jump, that takes the place of the install, and
// only its failure is reported, or that a disk forbids the install. Neither begins where this agent
// does not understand the request. What was installed is loaded for kexec where the request wants
// it.
func startJob(
	ctx context.Context, request *agentv1.InstallRequest, options install.Options,
	jump func(ctx context.Context, request *agentv1.InstallRequest) error, load func(disk string) error,
) *job {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	j := &job{request: request, cancel: cancel, ended: make(chan *agentv1.InstallReport, 1), progressed: make(chan struct{}, 1)}
	started := time.Now()
	options.Progress = func(phase agentv1.InstallProgress_Phase, done int64) {
		j.phase.Store(int32(phase))
		j.done.Store(done)
		j.askHeartbeat(time.Since(started))
	}
	options.Waiting = func(why string) {
		j.waiting.Store(&why)
		j.askHeartbeat(time.Since(started))
	}
	go func() {
		defer cancel(nil)
		j.ended <- j.run(ctx, options, jump, load)
	}()
	return j
}

// run returns the report of the install, or of what kept it from beginning.
func (j *job) run(
	ctx context.Context, options install.Options,
	jump func(ctx context.Context, request *agentv1.InstallRequest) error, load func(disk string) error,
) *agentv1.InstallReport {
	if refused := cmp.Or(install.NotUnderstood(j.request, options), install.ForAnother(j.request)); refused != nil {
		return refused
	}
	failed := install.ReportOf(j.request)
	if jump != nil {
		j.phase.Store(int32(agentv1.InstallProgress_PHASE_PREPARING))
		if refused := j.refusal(ctx, options); refused != nil {
			return refused
		}
		err := install.Survive(func() error { return jump(ctx, j.request) })
		failed.Error = fmt.Sprintf("the machine was not taken over by kexec for the install: %v", err)
		return failed
	}
	var err error
	if options.Disks, err = disksInTime(ctx, options); err != nil {
		failed.Error = err.Error()
		return failed
	}
	report := install.Run(ctx, j.request, options)
	if report.GetOk() && j.request.GetKexec() {
		err := install.Survive(func() error { return load(report.GetDisk()) })
		if j.loaded = err == nil; err != nil {
			err = fmt.Errorf("the machine is restarted, because kexec cannot start the installed system: %w", err)
			options.Warn(err)
			report.Warnings = append(report.Warnings, err.Error())
		}
	}
	return report
}

// diskWait is how long an install waits for disks that the machine had before it was taken over. A
// driver may find them late.
const diskWait = 30 * time.Second

// disksInTime returns the disks of the machine, as soon as those of before are there.
func disksInTime(ctx context.Context, options install.Options) ([]*agentv1.BlockDevice, error) {
	for began := time.Now(); ; {
		disks, err := inventory.Disks(options.Root)
		if err != nil || len(install.Missing(options.Before, disks)) == 0 || time.Since(began) >= diskWait {
			return disks, err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// loadInstalled gives the kernel of the system on a disk to the running one.
func (s *session) loadInstalled(disk string) error {
	if s.options.loadInstalled == nil {
		return errors.New("the agent runs in the system that was there before, not in memory")
	}
	return s.options.loadInstalled(disk)
}

// installOptions are for an install that has been recorded.
func (s *session) installOptions(request *agentv1.InstallRequest) install.Options {
	init := s.state.GetInit() // what the session goes on with is not for the goroutine of the install
	o := install.Options{
		Root: s.options.Root, Version: s.options.Version, Client: s.options.HTTPClient, MachineID: init.GetMachineId(), Network: s.options.network,
		Begun: s.state.GetBegunDisk(), Before: s.state.GetDisksBefore(), Busy: &s.installing,
		Begin: func(ctx context.Context, disk *agentv1.BegunDisk) error {
			if err := s.awaitAnswer(ctx); err != nil {
				return err
			}
			return s.beginToWrite(init, request, disk)
		},
		Warn: func(err error) { s.log.Warn("an install goes on", attemptOf(request), slog.Any("err", err)) },
	}
	if s.state.GetFirstInstallBootId() == s.bootID {
		o.FirstGeneration, o.FirstAttempt = s.state.GetFirstInstallGeneration(), s.state.GetFirstInstallAttempt()
	}
	return o
}

// awaitAnswer waits until the control plane has answered this agent. After a jump that is news. The
// install may have been called off while nobody could tell the agent. And an agent that is never
// answered must leave the disk alone, so that its contact limit returns the machine to the system
// there.
func (s *session) awaitAnswer(ctx context.Context) error {
	select {
	case <-s.heard:
	case <-ctx.Done():
	}
	if ctx.Err() != nil { // both may hold
		return context.Cause(ctx)
	}
	return nil
}

// beginToWrite records that the install is about to write, and which disk. It fails with
// ErrSuperseded when a newer takeover has put another agent in charge. The install calls it from
// its own goroutine.
func (s *session) beginToWrite(init *agentv1.TakeoverInit, request *agentv1.InstallRequest, disk *agentv1.BegunDisk) error {
	_, err := s.store.Update(init, func(state *agentv1.AgentState) error {
		state.BegunDisk = disk
		if state.GetFirstInstallBootId() != s.bootID {
			state.FirstInstallGeneration, state.FirstInstallAttempt = request.GetInstallGeneration(), request.GetAttempt()
			state.FirstInstallBootId = s.bootID
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("record that the disk is about to be written: %w", err)
	}
	return nil
}

// askHeartbeat asks for a heartbeat, because there is progress to tell, unless the last one for
// that was less than progressEvery ago.
func (j *job) askHeartbeat(since time.Duration) {
	if last := time.Duration(j.notified.Load()); since-last < progressEvery {
		return
	}
	j.notified.Store(int64(since))
	select {
	case j.progressed <- struct{}{}:
	default:
	}
}

func (j *job) progress() *agentv1.InstallProgress {
	waitingFor := ""
	if why := j.waiting.Load(); why != nil {
		waitingFor = *why
	}
	return &agentv1.InstallProgress{
		InstallGeneration: j.request.GetInstallGeneration(),
		Attempt:           j.request.GetAttempt(),
		Phase:             agentv1.InstallProgress_Phase(j.phase.Load()),
		BytesDone:         j.done.Load(),
		BytesTotal:        j.request.GetImage().GetSize(),
		WaitingFor:        waitingFor,
	}
}

// numbered is a request or a report.
type numbered interface {
	GetInstallGeneration() int64
	GetAttempt() int32
}

func generationOf(n numbered) slog.Attr {
	return slog.Int64("install_generation", n.GetInstallGeneration())
}
func attemptOf(n numbered) slog.Attr { return slog.Int("attempt", int(n.GetAttempt())) }

// jobEnded and jobProgressed return the channels of the running install, or nil when none runs.
func (s *session) jobEnded() <-chan *agentv1.InstallReport {
	if s.job == nil {
		return nil
	}
	return s.job.ended
}

func (s *session) jobProgressed() <-chan struct{} {
	if s.job == nil {
		return nil
	}
	return s.job.progressed
}

// resumeInstall takes over what an earlier agent of this host left: a report that was not
// acknowledged, or an install that did not end.
func (s *session) resumeInstall() error {
	if len(s.state.GetPendingInstall()) > 0 {
		return nil // resumePending starts it
	}
	if s.state.GetInstallRunning() {
		report := &agentv1.InstallReport{
			InstallGeneration: s.state.GetInstallGeneration(), Attempt: s.state.GetInstallAttempt(), Error: restartedMessage,
		}
		if returned := s.state.GetReturned(); returned != nil {
			report.Error = "the takeover by kexec before the install did not last: " + returned.GetCause()
		}
		report.Disk, report.DiskSerial = s.mayHaveWritten()
		s.keepReport(report)
		return nil
	}
	if data := s.state.GetUnacknowledgedReport(); len(data) > 0 {
		report := new(agentv1.InstallReport)
		if err := proto.Unmarshal(data, report); err != nil {
			return fmt.Errorf("the install report in the agent's state is damaged: %w", err)
		}
		s.report = report
	}
	return nil
}

// mayHaveWritten returns the disk that an install which did not end has written, as its report
// names it. An install goes on in memory after a jump, and what is recorded there is lost with the
// machine's memory. Of a machine that is back, nobody knows, unless the agent in memory has left
// word that it had begun none.
func (s *session) mayHaveWritten() (disk, serial string) {
	begun, returned := s.state.GetBegunDisk(), s.state.GetReturned()
	switch {
	case begun != nil && begun.GetInstallGeneration() == s.state.GetInstallGeneration():
		return "/dev/" + begun.GetName(), begun.GetSerial()
	case returned != nil && !returned.GetNothingWritten():
		return diskUnknown, ""
	}
	return "", ""
}

// resumePending starts the install that this agent was put into memory for. It was recorded as
// running before the jump, and starts here at most once.
func (s *session) resumePending(ctx context.Context) {
	data := s.state.GetPendingInstall()
	if len(data) == 0 {
		return
	}
	request := new(agentv1.InstallRequest)
	if err := proto.Unmarshal(data, request); err != nil || request.GetInstallGeneration() != s.state.GetInstallGeneration() ||
		request.GetAttempt() != s.state.GetInstallAttempt() {
		s.keepReport(&agentv1.InstallReport{
			InstallGeneration: s.state.GetInstallGeneration(), Attempt: s.state.GetInstallAttempt(),
			Error: "the install that the agent jumped for cannot be read in memory",
		})
		return
	}
	s.jumpWarnings = s.state.GetJumpWarnings()
	err := s.update(func(state *agentv1.AgentState) {
		state.PendingInstall, state.JumpWarnings, state.InstallBootId = nil, nil, s.bootID
	})
	if err != nil {
		s.notStarted(request, err)
		return
	}
	s.log.Info("an install goes on in memory", generationOf(request), attemptOf(request))
	s.job = startJob(ctx, request, s.installOptions(request), nil, s.loadInstalled)
}

// keepReport records how an install ended. If the host cannot record it, the report is delivered
// from memory.
func (s *session) keepReport(report *agentv1.InstallReport) {
	s.report = report
	err := s.update(func(state *agentv1.AgentState) {
		state.InstallRunning, state.UnacknowledgedReport = false, encodeReport(report)
	})
	if err != nil {
		s.log.Error("the install report cannot be recorded", attemptOf(report), slog.Any("err", err))
	}
}

// installEnded keeps the report of the install that has ended, and starts the one that waited for
// it, if any.
func (s *session) installEnded(ctx context.Context, report *agentv1.InstallReport) {
	s.log.Info("an install has ended", generationOf(report), attemptOf(report), slog.Bool("ok", report.GetOk()), slog.String("err", report.GetError()))
	s.loaded = s.job.loaded
	s.job = nil
	for _, warning := range s.jumpWarnings {
		report.Warnings = append(report.Warnings, "the jump into memory: "+warning)
	}
	s.jumpWarnings = nil
	s.keepReport(report)
	s.collected = time.Time{} // look at the disks again
	if next := s.next; next != nil {
		s.next = nil
		s.start(ctx, next)
	}
}

// callOff ends an install that nobody wants any more. Its report says so.
func (s *session) callOff(off *agentv1.CancelInstall) {
	if off == nil || s.job == nil {
		return
	}
	if r := s.job.request; r.GetInstallGeneration() == off.GetInstallGeneration() && r.GetAttempt() == off.GetAttempt() {
		s.log.Info("an install is called off", generationOf(off), attemptOf(off))
		s.job.cancel(install.ErrCalledOff)
	}
}

// handleResponse handles the answer to a heartbeat: the control plane has acknowledged reported,
// and wants request to be installed. Either may be nil. Its only error is ErrSuperseded.
func (s *session) handleResponse(ctx context.Context, reported *agentv1.InstallReport, request *agentv1.InstallRequest) error {
	if request != nil && s.isNew(request) {
		if s.job == nil {
			s.start(ctx, request)
			return nil
		}
		s.next = request
		s.job.cancel(errReplaced)
	}
	if reported == nil || s.report != reported {
		return nil
	}
	if reported.GetOk() && !s.rebooted() {
		s.reboot(ctx)
		return nil
	}
	s.report = nil
	err := s.update(func(state *agentv1.AgentState) { state.UnacknowledgedReport = nil })
	if errors.Is(err, takeover.ErrSuperseded) {
		return err
	}
	if err != nil {
		s.log.Error("the acknowledged install report cannot be forgotten", attemptOf(reported), slog.Any("err", err))
	}
	return nil
}

// isNew reports whether a request is above every install that was started here or waits to be.
func (s *session) isNew(request *agentv1.InstallRequest) bool {
	above := func(generation int64, attempt int32) bool {
		return request.GetInstallGeneration() > generation ||
			request.GetInstallGeneration() == generation && request.GetAttempt() > attempt
	}
	if request.GetInstallGeneration() > 0 && request.GetAttempt() > 0 &&
		above(s.state.GetInstallGeneration(), s.state.GetInstallAttempt()) &&
		(s.next == nil || above(s.next.GetInstallGeneration(), s.next.GetAttempt())) {
		return true
	}
	s.log.Warn("an install request that is not new was refused", generationOf(request), attemptOf(request))
	return false
}

// start records an install and runs it. It runs nothing that it could not record.
func (s *session) start(ctx context.Context, request *agentv1.InstallRequest) {
	err := s.update(func(state *agentv1.AgentState) {
		state.InstallGeneration, state.InstallAttempt = request.GetInstallGeneration(), request.GetAttempt()
		state.InstallRunning, state.InstallBootId = true, s.bootID
		state.StartedAt, state.UnacknowledgedReport = timestamppb.Now(), nil
	})
	if err != nil {
		s.notStarted(request, err)
		return
	}
	s.report, s.loaded = nil, false
	s.log.Info("an install was started", generationOf(request), attemptOf(request))
	s.job = startJob(ctx, request, s.installOptions(request), s.jump(), s.loadInstalled)
}

// notStarted has an install reported that cannot be recorded, unless that is because this agent is
// no longer in charge.
func (s *session) notStarted(request *agentv1.InstallRequest, err error) {
	s.log.Error("an install was not started, because it cannot be recorded", attemptOf(request), slog.Any("err", err))
	if !errors.Is(err, takeover.ErrSuperseded) {
		s.report = install.ReportOf(request)
		s.report.Error = "the install was not started, because the agent cannot record it: " + err.Error()
	}
}

// jump returns what is done instead of an install, nil where the install itself is.
func (s *session) jump() func(ctx context.Context, request *agentv1.InstallRequest) error {
	if s.options.jumpForInstall == nil {
		return nil
	}
	store, state, clock := s.store, proto.CloneOf(s.state), s.link.now
	return func(ctx context.Context, request *agentv1.InstallRequest) error {
		// The takeover may be weeks ago. What it told of the time, the agent in memory is told as of now.
		now := clock()
		if made := request.GetBootToken().GetMadeAt().AsTime(); made.After(now) {
			now = made
		}
		state.Init.SentAt = timestamppb.New(now)
		return s.options.jumpForInstall(ctx, store, state, request)
	}
}

// endInstall ends the running install, waits for it, and records that. The agent keeps its lock on
// the host until then, because the next agent may write the same disk. An install that hangs keeps
// its disk, which the kernel opens for nobody else.
func (s *session) endInstall() {
	if s.job == nil {
		return
	}
	s.job.cancel(errStopped)
	report := <-s.job.ended
	s.job = nil
	s.keepReport(report)
}

// reboot restarts the machine and waits for it to go down. If it does not, the heartbeats go on,
// and the answer to the next one tries again.
func (s *session) reboot(ctx context.Context) {
	boot := s.options.Reboot
	if s.loaded {
		boot = s.options.startInstalled
	}
	s.log.Info("the installed system is booted", slog.Bool("kexec", s.loaded))
	s.loaded = false // the next try is a restart
	if err := boot(ctx); err != nil {
		s.log.Error("the machine cannot be rebooted", slog.Any("err", err))
		return
	}
	timer := time.NewTimer(rebootWait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
		s.log.Error("the machine has not gone down")
	}
}
