package sim

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/crypto/ssh"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/sim/fault"
	"github.com/ironherd/ironherd/internal/sim/firmware"
	"github.com/ironherd/ironherd/internal/sim/hardware"
	"github.com/ironherd/ironherd/internal/sim/sshhost"
)

// runPeriod is what a machine does during a period: it boots, answers SSH, and ends everything that
// runs on it when the period ends.
func (h *host) runPeriod(ctx context.Context, p *period) {
	defer close(p.done)
	defer p.tasks.Wait()
	defer h.killProcesses()
	defer p.cancel()
	logger := h.world.cfg.Logger.With(slog.String("machine", h.snapshot().Hostname))
	if h.snapshot().System == systemBooting && !h.startSystem(ctx, p, logger) {
		return
	}
	record := h.snapshot()
	if record.System == systemDead {
		close(p.booted)
		h.stayDead(ctx, logger)
		return
	}
	h.runSystem(ctx, p, record, logger)
}

// runSystem is what a machine does that has booted, until it breaks or the period ends.
func (h *host) runSystem(period context.Context, p *period, record hostRecord, logger *slog.Logger) {
	ctx, halt := context.WithCancel(period)
	defer halt()
	if record.Breaks != "" && record.System == systemProvider {
		p.tasks.Go(func() {
			if until(ctx, record.BreaksAt) {
				h.breakDown(p, record.Breaks, logger)
				halt()
			}
		})
	}
	listener, server, err := h.openSSH(ctx, p, record)
	if err != nil {
		logger.Error("machine cannot be reached", slog.Any("err", err))
		<-ctx.Done()
		return
	}
	close(p.booted)
	if i := record.Installed; record.System == systemInstalled && (!i.Acknowledged || i.Watched) {
		p.tasks.Go(func() { h.reportUp(ctx, p, i, record.BootID, logger) })
	}
	if record.System == systemProvider && record.Agent != "" {
		h.resumeAgent(ctx, p, record.Agent, logger)
	}
	if h.real {
		h.watchResetButton(ctx, p, logger)
	}
	server.Serve(ctx, listener)
	<-ctx.Done()
	if period.Err() == nil {
		h.killProcesses()
		h.stayDead(period, logger)
	}
}

// stayDead is what a machine does on which nothing runs, until the period ends. It accepts no
// connection, and refuses none either: with a port on which nobody listens, it would do that.
func (h *host) stayDead(ctx context.Context, logger *slog.Logger) {
	listener, err := h.listen(ctx)
	if err == nil {
		defer func() { _ = listener.Close() }()
	} else if ctx.Err() == nil {
		logger.Error("a dead machine refuses connections", slog.Any("err", err))
	}
	<-ctx.Done()
}

// listen listens on the machine's address.
func (h *host) listen(ctx context.Context) (net.Listener, error) {
	return listenAgain(ctx, net.JoinHostPort(h.address.String(), strconv.Itoa(h.world.self.SSHPort)))
}

// breakDown records that the machine is broken: from now on nothing runs on it.
func (h *host) breakDown(p *period, what fault.Kind, logger *slog.Logger) {
	err := h.update(p, func(r *hostRecord) { r.System, r.Agent = systemDead, "" })
	if err != nil && !errors.Is(err, errOver) {
		logger.Error("a broken machine was not recorded", slog.Any("err", err))
	}
	logger.Info("machine broke down", slog.String("fault", string(what)))
}

// startSystem boots whatever system there is, and reports whether the period goes on.
func (h *host) startSystem(ctx context.Context, p *period, logger *slog.Logger) bool {
	record := h.snapshot()
	next, err := h.chooseSystem(ctx, record, logger)
	if err != nil {
		if ctx.Err() == nil {
			logger.Error("machine does not boot", slog.Any("err", err))
		}
		next.System = systemDead
	}
	if !until(ctx, record.UpAt) {
		return false
	}
	err = h.update(p, func(r *hostRecord) {
		r.System, r.Installed, r.Verified, r.Rejected = next.System, next.Installed, next.Verified, next.Rejected
		r.Breaks, r.BreaksAt = next.Breaks, next.BreaksAt
	})
	if err != nil && !errors.Is(err, errOver) {
		logger.Error("boot was not recorded", slog.Any("err", err))
	}
	return err == nil
}

// until waits for an instant, and reports whether it came before ctx ended.
func until(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// chooseSystem does what firmware does: it decides which system the machine boots, and returns the
// machine's record after that.
func (h *host) chooseSystem(ctx context.Context, record hostRecord, logger *slog.Logger) (hostRecord, error) {
	if err := hardware.SetBoot(h.root, record.BootID); err != nil {
		return record, err
	}
	if record.Breaks != "" { // the boot has not mended it
		record.System = systemDead
		return record, nil
	}
	if record.Rescue {
		record.System = systemRescue
		return record, nil
	}
	disk, first := h.findSystem(logger)
	if first == nil {
		record.System = systemProvider
		record.Breaks, record.BreaksAt = h.world.breaks(record.UpAt)
		return record, nil
	}
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(first)
	if err != nil {
		return record, err
	}
	if record.Installed != nil && bytes.Equal(payload, record.Installed.FirstBoot) {
		record.System = systemInstalled
		return record, nil
	}
	digest, err := h.readBack(ctx, disk, first)
	if err != nil {
		return record, err
	}
	if want := h.world.digestOf(first.GetImage()); digest != want {
		logger.Error("installed image is not what it is said to be", slog.String("disk", disk.Name), slog.String("found", digest), slog.String("want", first.GetImage().GetDigest()), slog.Bool("known", want != ""))
		record.System = systemDead
		record.Rejected++
		return record, nil
	}
	if err := h.clearForInstalled(); err != nil {
		return record, err
	}
	record.System = systemInstalled
	record.Installed = &installedSystem{FirstBoot: payload}
	record.Verified++
	return record, nil
}

// breaks decides whether a machine that boots the provider's system breaks, and when.
func (w *World) breaks(upAt time.Time) (fault.Kind, time.Time) {
	for _, kind := range []fault.Kind{fault.HostHangs, fault.HostFrozen, fault.HostDiskLost, fault.HostDies} {
		if shot, ok := w.faults.Fire(kind); ok {
			return kind, upAt.Add(shot.Duration)
		}
	}
	return "", time.Time{}
}

// findSystem looks for a first-boot area on each disk in turn.
func (h *host) findSystem(logger *slog.Logger) (hardware.Disk, *agentv1.FirstBoot) {
	for _, disk := range h.machine.Disks {
		first, err := firmware.Find(disk.Path(h.root))
		if err == nil {
			return disk, first
		}
		if !errors.Is(err, firmware.ErrNoSystem) {
			logger.Warn("disk is not bootable", slog.String("disk", disk.Name), slog.Any("err", err))
		}
	}
	return hardware.Disk{}, nil
}

// readBack returns the digest of what is on the disk. Where the install has moved the partition
// table, the beginning counts as that of the image that this world serves.
func (h *host) readBack(ctx context.Context, disk hardware.Disk, first *agentv1.FirstBoot) (string, error) {
	if err := h.world.acquireCPU(ctx); err != nil {
		return "", err
	}
	defer h.world.releaseCPU()
	var head []byte
	if n := first.GetChangedHead(); n > 0 {
		for _, known := range h.world.made {
			if known.Digest == first.GetImage().GetDigest() {
				var err error
				if head, err = known.Head(min(n, first.GetImage().GetSize())); err != nil {
					return "", err
				}
			}
		}
	}
	return firmware.ReadBack(ctx, disk.Path(h.root), first.GetImage().GetSize(), head)
}

// digestOf returns the digest of an image that this world serves, or "" for any other image. It
// does not trust the digest in the request.
func (w *World) digestOf(image *agentv1.Image) string {
	for _, known := range w.images {
		if known.Digest == image.GetDigest() && known.Size == image.GetSize() {
			return known.Digest
		}
	}
	return ""
}

// clearForInstalled makes the file system that of a freshly installed system. It removes what
// belonged to the previous system, but not the keys that may log in.
func (h *host) clearForInstalled() error {
	entries, err := os.ReadDir(filepath.Join(h.root, "root"))
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if entry.Name() != ".ssh" {
			errs = append(errs, os.RemoveAll(filepath.Join(h.root, "root", entry.Name())))
		}
	}
	errs = append(errs, os.RemoveAll(filepath.Join(h.root, "var")), os.MkdirAll(filepath.Join(h.root, "var/lib"), 0o755),
		os.MkdirAll(filepath.Join(h.root, "var/log"), 0o755))
	return errors.Join(errs...)
}

// openSSH listens for the machine.
func (h *host) openSSH(ctx context.Context, p *period, record hostRecord) (net.Listener, *sshhost.Server, error) {
	key, err := h.hostKey(record)
	if err != nil {
		return nil, nil, err
	}
	listener, err := h.listen(ctx)
	if err != nil {
		return nil, nil, err
	}
	return listener, sshhost.NewServer(sshhost.Options{
		Root: h.root, Hostname: record.Hostname, KernelRelease: hardware.KernelRelease, HostKey: key, Store: h.world.store,
		Execute:  func(ctx context.Context, program sshhost.Program) sshhost.Status { return h.execute(ctx, p, program) },
		Reboot:   func() error { return h.resetIn(p) },
		Observer: (*observer)(h.world),
		Logger:   h.world.cfg.Logger,
	}), nil
}

// resetIn restarts the machine for a program that runs on it in that period.
func (h *host) resetIn(p *period) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.period != p || p.isOver() {
		return errOver
	}
	return h.bootLocked(bootReset, time.Time{})
}

// reportUp does what an installed system does on its first boot, and where it is watched on every
// one: it tells the control plane that it is up.
func (h *host) reportUp(ctx context.Context, p *period, installed *installedSystem, bootID string, logger *slog.Logger) {
	first := new(agentv1.FirstBoot)
	if err := proto.Unmarshal(installed.FirstBoot, first); err != nil {
		logger.Error("first-boot data cannot be read", slog.Any("err", err))
		return
	}
	key, err := h.hostKey(h.snapshot())
	if err != nil {
		logger.Error("installed system has no host key", slog.Any("err", err))
		return
	}
	public := string(ssh.MarshalAuthorizedKey(key.PublicKey()))
	failed := func(err error) { logger.Debug("installed system was not heard", slog.Any("err", err)) }
	acknowledged := func(watched bool) {
		if i := h.snapshot().Installed; i == nil || i.Acknowledged && i.Watched == watched {
			return
		}
		err := h.update(p, func(r *hostRecord) {
			r.Installed = &installedSystem{FirstBoot: installed.FirstBoot, Acknowledged: true, Watched: watched}
		})
		if err != nil && !errors.Is(err, errOver) {
			logger.Error("acknowledgement was not recorded", slog.Any("err", err))
		}
	}
	if err := firmware.ReportUp(ctx, first.GetToken(), bootID, public, acknowledged, failed); err != nil && ctx.Err() == nil {
		logger.Error("installed system cannot report that it is up", slog.Any("err", err))
	}
}
