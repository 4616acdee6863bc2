package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const (
	// defaultTimeout holds when the request names none.
	defaultTimeout = 15 * time.Minute
	// maxFirstBootData is the largest first-boot data, in bytes.
	maxFirstBootData = 64 << 10
	// patience is how long an install that has to end is waited for. It is longer than the kernel
	// takes to give a disk up, so that mostly the disk's own fault is told.
	patience = 3 * time.Minute
)

// Options are what an install needs of its machine.
type Options struct {
	// Root is put before every path; "/" on a real machine.
	Root string
	// Version of the agent.
	Version string
	// Disks of the machine, as the inventory reports them.
	Disks []*agentv1.BlockDevice
	// Before are the disks that the machine had before the agent was in memory; empty: that is not
	// known.
	Before []*agentv1.BlockDevice
	// MachineID is the machine's own. An install of it that a disk holds is not overwritten by one
	// that is not newer.
	MachineID string
	// FirstGeneration and FirstAttempt are the first install that began to write since the host
	// booted; both zero: there was none. What the running system wrote itself, and has not booted, it
	// may overwrite.
	FirstGeneration int64
	FirstAttempt    int32
	// Network is that of the system that the machine had, which a system with cloud-init gets. May be
	// nil.
	Network *agentv1.Network
	// Begun is the disk that the newest install that began to write has written, as Begin was told it;
	// nil: none is known. A later attempt at the same install writes no other.
	Begun *agentv1.BegunDisk
	// Begin is called before anything is written, with the disk that is to be; nothing is when it
	// fails. It may wait until ctx ends, which it does when the time of the install is up. May be nil.
	Begin func(ctx context.Context, disk *agentv1.BegunDisk) error
	// Busy says that an install runs, also one that Run has given up on. Run refuses to begin while
	// it is true. May be nil.
	Busy *atomic.Bool
	// Client fetches the image. Nil: NewClient's.
	Client *http.Client
	// Warn is called with what did not stop the install, and is in the report, too. May be nil.
	Warn func(err error)
	// Progress is called with the phase and the bytes done in it. It must not wait. May be nil.
	Progress func(phase agentv1.InstallProgress_Phase, done int64)
	// Waiting is called with why the image does not come at the moment, again and again, and with
	// nothing when it comes again. It must not wait. May be nil.
	Waiting func(why string)

	// medium stands between the install and the disk, where it is not nil.
	medium func(medium) medium
	// settled is set by whoever says how the install ends: the install that it has ended well, or Run
	// that it has given it up.
	settled *atomic.Bool
	// opened gets the disk that is written, as soon as that is open.
	opened *atomic.Pointer[disk]
}

// NewClient returns an HTTP client for images. It speaks HTTP/1.1, because one file at a time gains
// nothing by HTTP/2, and the agent is smaller without. A body may take as long as it likes, but a
// server that does not answer fails soon.
func NewClient() *http.Client {
	return &http.Client{CheckRedirect: redirected, Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   15 * time.Second,
		ResponseHeaderTimeout: stallLimit,
		IdleConnTimeout:       5 * time.Second,
		MaxIdleConnsPerHost:   1,
		DisableCompression:    true,
		ReadBufferSize:        32 << 10,
	}}
}

// redirected follows redirects as ever, without telling where from: the query of a URL may be a
// secret, which is not for the host that is redirected to.
func redirected(r *http.Request, before []*http.Request) error {
	if len(before) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	r.Header.Del("Referer")
	return nil
}

// heads are the buffers for the first MiB of an image, which is written last.
var heads = sync.Pool{New: func() any { return new([mebibyte]byte) }}

// ErrCalledOff is the cause to end an install with that nobody wants any more. The report says what
// that leaves on the disk.
var ErrCalledOff = errors.New("called off")

// ReportOf returns a report of the attempt that the request is for, which says nothing yet.
func ReportOf(request *agentv1.InstallRequest) *agentv1.InstallReport {
	return &agentv1.InstallReport{InstallGeneration: request.GetInstallGeneration(), Attempt: request.GetAttempt()}
}

// Run installs what the request asks for and returns the report: of success, or of the failure in
// one sentence. It returns soon after ctx has ended. The caller sees to it that one attempt is
// started at most once and that installs do not overlap.
func Run(ctx context.Context, request *agentv1.InstallRequest, options Options) *agentv1.InstallReport {
	started := time.Now()
	timeout := time.Duration(request.GetTimeoutMs()) * time.Millisecond
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the install did not end within %s", timeout))
	defer cancel()
	if options.Client == nil {
		options.Client = NewClient()
		defer options.Client.CloseIdleConnections()
	}
	if options.Warn == nil {
		options.Warn = func(error) {}
	}
	if options.Waiting == nil {
		options.Waiting = func(string) {}
	}
	if options.Progress == nil {
		options.Progress = func(agentv1.InstallProgress_Phase, int64) {}
	}
	report := ReportOf(request)
	var begun atomic.Pointer[agentv1.BegunDisk]
	begin := options.Begin
	options.Begin = func(ctx context.Context, disk *agentv1.BegunDisk) error {
		if begin != nil {
			if err := begin(ctx, disk); err != nil {
				return err
			}
		}
		begun.Store(disk)
		return nil
	}
	options.settled, options.opened = new(atomic.Bool), new(atomic.Pointer[disk])
	busy := cmp.Or(options.Busy, new(atomic.Bool))
	done := make(chan error, 1)
	if busy.CompareAndSwap(false, true) {
		go func() {
			err := Survive(func() error { return install(ctx, request, options, report) })
			busy.Store(false) // first: who hears of the end may begin the next one
			done <- err
		}()
	} else {
		done <- errors.New("nothing was written: an earlier install still waits for a disk that does not answer; restart the machine if it never does")
	}
	hangs, err := await(ctx, done, options.settled)
	switch {
	case hangs: // it still has its report
		report = ReportOf(request)
		report.Disk, report.DiskSerial = devicePath(begun.Load().GetName()), begun.Load().GetSerial()
		if target := options.opened.Load(); target != nil {
			err = told(err, target.withFault(err))
		}
	case err != nil && ctx.Err() != nil:
		err = ended(ctx, err, report, begun.Load() != nil)
	}
	if begun.Load() == nil {
		report.Disk, report.DiskSerial = "", "" // nothing was written
	}
	report.Ok = err == nil
	if err != nil {
		report.Error = clip(err.Error())
	}
	report.DurationMs = time.Since(started).Milliseconds()
	return report
}

// await waits for an install, and gives one up that does not end within patience after ctx.
func await(ctx context.Context, done <-chan error, settled *atomic.Bool) (hangs bool, err error) {
	select {
	case err := <-done:
		return false, err
	case <-ctx.Done():
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return false, err
	case <-timer.C:
	}
	if !settled.CompareAndSwap(false, true) {
		return false, <-done // it has ended well at this moment
	}
	return true, fmt.Errorf("%w; a disk does not answer", context.Cause(ctx))
}

// ended says why an install has ended whose context has. What its disk has said is told besides: a
// broken one may be why the time was up.
func ended(ctx context.Context, err error, report *agentv1.InstallReport, begun bool) error {
	why := context.Cause(ctx)
	if waited, ok := errors.AsType[*waitedError](err); ok {
		why = waited
	}
	if errors.Is(why, ErrCalledOff) {
		why = calledOff(report, begun)
	}
	return told(why, err)
}

// told says why an install has ended, and what its disk has said, where err has that.
func told(why, err error) error {
	if broken, ok := errors.AsType[*diskError](err); ok {
		return fmt.Errorf("%w; the disk has failed: %w", why, broken.fault)
	}
	return why
}

// calledOff says what an install that was called off leaves on the disk. begun: the disk was wiped.
func calledOff(report *agentv1.InstallReport, begun bool) error {
	if !begun {
		return fmt.Errorf("%w: nothing was written", ErrCalledOff)
	}
	return fmt.Errorf("%w: %s was wiped and %d bytes of the image were written, so what it holds is undefined", ErrCalledOff, report.GetDisk(),
		report.GetBytesWritten())
}

// clip keeps an error's text to what a report may hold.
func clip(text string) string {
	const limit = 1000
	if len(text) > limit {
		text = text[:limit]
	}
	return strings.ToValidUTF8(text, "?")
}

// install does the work and fills in the report as it learns.
func install(ctx context.Context, request *agentv1.InstallRequest, options Options, report *agentv1.InstallReport) (err error) {
	options.Progress(agentv1.InstallProgress_PHASE_PREPARING, 0)
	if err := checkArchitecture(request.GetImage()); err != nil {
		return err
	}
	raw, file, err := digestsOf(request.GetImage())
	if err != nil {
		return err
	}
	if err := checkFirstBoot(request); err != nil {
		return err
	}
	marks := readMarks(&options)
	chosen, err := chooseTarget(request, options, marks)
	if err != nil {
		return err
	}
	report.Disk, report.DiskSerial = devicePath(chosen.GetName()), chosen.GetSerial()
	if err := refuseHeld(request, chosen, options, marks, report); err != nil {
		return err
	}
	// Nobody else can use it from now on, and have what is made there wiped.
	target, err := openTarget(chosen, options)
	if err != nil {
		return err
	}
	defer target.close()
	defer func() { err = target.withFault(err) }()
	if err := refuseForeign(request, options, chosen, target.file, marks, report); err != nil {
		return err
	}
	source, err := openSource(ctx, options, request.GetImage().GetUrl())
	if err != nil {
		return err
	}
	defer source.Close()
	if file, err = source.fileDigest(file); err != nil {
		return err
	}
	buffer := heads.Get().(*[mebibyte]byte)
	defer heads.Put(buffer)
	l, nameless := newLayout(request, chosen, target.size, options.Network)
	s := &stream{limit: l.room(), disk: target, head: buffer[:0], progress: func(done int64) {
		options.Progress(agentv1.InstallProgress_PHASE_WRITING, done)
	}}
	b := &beginning{
		request: request, options: options, chosen: chosen, target: target, layout: l, stream: s, source: source,
		raw: raw, file: file, fileHash: file.hash(), length: source.rawLength(request.GetImage()),
	}
	s.begin = b.begin
	err = transfer(ctx, request.GetImage(), source, s, b.fileHash)
	report.BytesWritten = s.written.Load() // the first MiB comes last
	if err != nil {
		return err
	}
	options.Progress(agentv1.InstallProgress_PHASE_VERIFYING, s.total)
	if err := b.verify(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	options.Progress(agentv1.InstallProgress_PHASE_FINISHING, s.total)
	if err := finish(request, target, b.changes, s); err != nil {
		return err
	}
	if options.settled.Load() {
		return context.Cause(ctx)
	}
	return b.conclude(nameless, report)
}

// conclude makes the disk boot, and wipes it again unless the install is reported as one that has
// ended well. nameless is why the system is not told its name or its network.
func (b *beginning) conclude(nameless error, report *agentv1.InstallReport) error {
	options, target := b.options, b.target
	warn := func(all ...error) {
		for _, err := range all {
			if err != nil {
				options.Warn(err)
				report.Warnings = append(report.Warnings, clip(err.Error()))
			}
		}
	}
	installed := false
	defer func() {
		if !installed {
			warn(target.wipe())
		}
	}()
	if err := makeBoot(target, b.changes); err != nil {
		return err
	}
	report.BytesWritten = b.stream.total
	if options.settled.Load() { // it was given up: no boot entry for what is wiped
		return nil
	}
	// The system is installed. What comes now helps the firmware and the kernel to see it.
	warn(b.source.longWaited())
	warn(doing("make the NoCloud seed", nameless))
	warn(b.doubtful)
	entry, doubt := bootByEFI(options.Root, b.esp)
	warn(doubt)
	instead, unread := bootsInstead(options, b.chosen, b.esp, entry)
	warn(instead, unread)
	warn(doing("have the kernel read the partitions", target.readPartitions()))
	if b.changes.seed != nil || !errors.Is(unread, errLate) { // a disk that hangs is waited for once
		warn(otherVolumes(options.Root, b.chosen, b.changes.seed != nil)...)
	}
	installed = options.settled.CompareAndSwap(false, true)
	return nil
}

// openSource opens the image. A server that has no such image is noticed before anything is
// destroyed.
func openSource(ctx context.Context, options Options, url string) (*source, error) {
	s, err := newSource(ctx, options.Client, url)
	if err != nil {
		return nil, err
	}
	s.waiting = options.Waiting
	if err := s.open(); err != nil { //nolint:contextcheck // it has one of its own, made of ours
		s.Close()
		return nil, fmt.Errorf("copy the image: %w", err)
	}
	return s, nil
}

// doing says during what an error has come.
func doing(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// chooseTarget returns the disk that the request means, that nothing uses, and that takes an image.
func chooseTarget(request *agentv1.InstallRequest, options Options, marks marks) (*agentv1.BlockDevice, error) {
	inUse := zonedBelow(options.Root)
	if filepath.Clean(options.Root) == "/" {
		inUse = readUsage(options.Root).of
	}
	return choose(options.Disks, request.GetRootDisk(), max(1, request.GetImage().GetSize()), inUse, priorOf(request, options, marks))
}

// openTarget opens the disk, and nothing is written.
func openTarget(chosen *agentv1.BlockDevice, options Options) (*disk, error) {
	target, err := openDisk(options.Root, chosen.GetName(), chosen.GetSizeBytes())
	if err != nil {
		return nil, fmt.Errorf("open the disk: %w", err)
	}
	if options.medium != nil {
		target.medium = options.medium(target.medium)
	}
	options.opened.Store(target)
	return target, nil
}

// transfer moves the image to the disk, all but its first MiB. fileHash gets all of its file; nil:
// nobody wants to know.
func transfer(ctx context.Context, image *agentv1.Image, source *source, s *stream, fileHash hash.Hash) error {
	want, room := image.GetSize(), s.limit
	if want > 0 {
		s.limit = want
	}
	fetching := readAhead(source, source.abort, fileHash)
	defer fetching.stop()
	raw, release, err := decompress(fetching, source.compression(image))
	if err == nil {
		s.raw, s.abort = raw, source.abort
		if fileHash != nil {
			s.file = fetching
		}
		err = s.run(ctx)
	}
	if err == nil {
		release() // a decoder that has failed is not used again
	}
	switch {
	case errors.Is(err, errTooLarge) && want > 0:
		return fmt.Errorf("the image is larger than the %d bytes that were announced", want)
	case errors.Is(err, errTooLarge):
		return fmt.Errorf("the image does not fit: it would reach into the first-boot area at %d", room)
	case s.refused != nil:
		return s.refused
	case err != nil:
		return fmt.Errorf("copy the image: %w", err)
	}
	return checkLength(image, s)
}

// checkLength fails when an image that has ended is not as long as it should be.
func checkLength(image *agentv1.Image, s *stream) error {
	switch want := image.GetSize(); {
	case want > 0 && s.total != want:
		return fmt.Errorf("the image has %d bytes, not the %d that were announced", s.total, want)
	case s.total == 0:
		return errors.New("the image is empty")
	}
	return nil
}

// finish writes the first-boot area and the seed, and waits until all but what makes the disk boot
// is on stable storage. It does not stop half-way when the time is up.
func finish(request *agentv1.InstallRequest, target *disk, c changes, s *stream) error {
	content, err := contentOf(finished{target.file, c.head}, target.size)
	if err != nil {
		return fmt.Errorf("read the disk: %w", err)
	}
	first := firstBootOf(request)
	first.ChangedHead, first.Content = c.changed(), content
	first.Image.Size, first.Image.Digest = s.total, fmt.Sprintf("sha256:%x", s.hash.Sum(nil))
	area, err := EncodeFirstBoot(first)
	if err != nil {
		return err
	}
	offset := FirstBootOffset(target.size)
	if err := target.makeZero(offset, begunSlots[0]); err != nil {
		return fmt.Errorf("write the first-boot area: %w", err)
	}
	if err := target.write(area, offset); err != nil {
		return fmt.Errorf("write the first-boot area: %w", err)
	}
	if c.blankFrom > 0 {
		if err := target.makeZero(c.blankFrom, mebibyte); err != nil {
			return fmt.Errorf("write the end of the last partition: %w", err)
		}
	}
	if c.seed != nil {
		if err := target.write(c.seed, c.seedAt); err != nil {
			return fmt.Errorf("write the NoCloud seed: %w", err)
		}
	}
	return doing("sync the disk", target.sync())
}

// makeBoot writes what makes the disk boot, and removes the record that an install has begun.
func makeBoot(target *disk, c changes) error {
	if c.backup != nil {
		if err := target.write(c.backup, target.size-int64(len(c.backup))); err != nil {
			return fmt.Errorf("write the backup of the partition table: %w", err)
		}
	}
	w := writer{disk: target, put: target.write}
	if err := errors.Join(w.write(c.head, 0), w.flush()); err != nil {
		return fmt.Errorf("write the boot sectors: %w", err)
	}
	if err := target.sync(); err != nil {
		return fmt.Errorf("sync the disk: %w", err)
	}
	return target.end()
}
