package prober

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Config is how probes are made. When they are due is policy (probe_interval, watch_interval).
type Config struct {
	// ConnectTimeout bounds the TCP connect of a probe, and Timeout what follows: the SSH key
	// exchange, or the answer to a GET with its TLS handshake.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	Timeout        time.Duration `yaml:"timeout"`
	// Backoff of a probe that could not be made, for a reason that is not the machine's.
	Backoff fleet.Backoff `yaml:"backoff"`
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		ConnectTimeout: 2 * time.Second, Timeout: 5 * time.Second,
		Backoff: fleet.Backoff{Initial: 10 * time.Second, Exponent: 1.5, Maximum: time.Minute},
	}
}

// DefaultLoop returns the defaults of the loop. A probe costs little, and one of a machine that is
// gone waits for its timeout: many go on at once.
func DefaultLoop() shepherd.Config {
	loop := shepherd.DefaultConfig()
	loop.Parallelism = 50
	return loop
}

// Validate reports every fault at once; each names its key and is of kind Invalid.
func (c Config) Validate() error {
	return errors.Join(
		shepherd.RequirePositive("connect_timeout", c.ConnectTimeout), shepherd.RequirePositive("timeout", c.Timeout),
		shepherd.RequireBackoff("backoff", c.Backoff))
}

// ProviderConfig is what the configuration of a provider says to the prober.
type ProviderConfig struct {
	// List: the provider is a list of hosts, which says how each is reached: by which port, and by
	// which other host. It costs no call.
	List bool
}

// Source is a provider whose installed machines are probed.
type Source = shepherd.Source[ProviderConfig]

// Result is what a probe has found.
type Result string

// The results.
const (
	// ResultAnswered: the system answers as it should.
	ResultAnswered Result = "answered"
	// ResultRefused: the system has another host key.
	ResultRefused Result = "refused"
	// ResultUnanswered: it does not answer, or not as it should.
	ResultUnanswered Result = "unanswered"
	// ResultFailed: nobody could ask.
	ResultFailed Result = "failed"
)

// Options is what a Prober is built with besides sources, configuration and key.
type Options struct {
	// Port of SSH where the provider names none. Zero: 22.
	Port uint16
	// User is who logs in to a jump host whose list names no user. Empty: root.
	User string
	// Logger receives what an operator should know. Nil: nothing is logged.
	Logger *slog.Logger
	// Observed is told of every probe. It must not block. Nil: nobody is told.
	Observed func(by fleet.SeenBy, result Result)
	// JumpHosts are those of the process. Nil: nobody else uses them.
	JumpHosts *remote.JumpHosts
	// Dial makes the connections below SSH and HTTP. Nil: TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Ask takes the place of SSH and HTTP where there is no network: in a rehearsal. It returns nil
	// where the system of that install answers.
	Ask func(ctx context.Context, address netip.Addr, seenUp fleet.SeenUp, generation fleet.InstallGeneration, attempt int) error
}

// Prober is the shepherd.Handler of the process probe.
type Prober struct {
	db      *bmdb.DB
	sources shepherd.Sources[Source]
	config  Config
	options Options
	dialer  *remote.Dialer
}

// New returns the handler for these sources. The key opens the hosts that connections go through.
// It reports every fault of the configuration.
func New(db *bmdb.DB, sources []Source, config Config, key *remote.Key, options Options) (*Prober, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	dialer := remote.NewDialer(key, remote.Options{
		Logger: options.Logger, ConnectTimeout: config.ConnectTimeout, HandshakeTimeout: config.Timeout, StepTimeout: config.Timeout,
		JumpHosts: options.JumpHosts, Dial: options.Dial,
	})
	return &Prober{db: db, sources: shepherd.Plain(sources), config: config, options: options, dialer: dialer}, nil
}

// Scope covers the configured providers.
func (p *Prober) Scope() shepherd.Scope {
	return shepherd.Scope{Process: fleet.ProcessProbe, Providers: p.sources.Names(), Backoff: p.config.Backoff}
}

// Act asks the installed system of one machine.
func (p *Prober) Act(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
	source, err := p.sources.Of(work)
	if err != nil {
		return shepherd.Fail{Err: err}
	}
	q, err := p.question(ctx, source, work.Record)
	if err != nil {
		return shepherd.Fail{Err: plainError{err}}
	}
	if q.seenUp.By == fleet.SeenByUnit { // it was claimed because a call is overdue
		p.observe(q, ResultUnanswered)
		return shepherd.Finish{Changes: []bmdb.Change{bmdb.RecordProbe(bmdb.ProbeResult{
			Generation: q.generation, Attempt: q.attempt, LastCall: q.lastCall, Detail: "its unit does not call",
		})}}
	}
	hostKey, err := p.ask(ctx, q)
	if ctx.Err() != nil { // the lease or the loop has ended, not the machine
		return shepherd.Fail{Err: context.Cause(ctx)}
	}
	if err != nil && (remote.Answered(err) == fleet.AnswerUnknown || q.outlived(err)) {
		p.observe(q, ResultFailed)
		return shepherd.Fail{Err: notMade(err), Answer: fleet.AnswerUnknown}
	}
	result := bmdb.ProbeResult{Generation: q.generation, Attempt: q.attempt, Answered: err == nil, Detail: "it answers " + q.seenUp.Asks()}
	if hostKey.Key != "" {
		result.HostKeys, result.Detail = []string{hostKey.Key}, result.Detail+" under the host key "+hostKey.Fingerprint
	}
	if err == nil {
		p.observe(q, ResultAnswered)
		return shepherd.Finish{Changes: []bmdb.Change{bmdb.RecordProbe(result)}}
	}
	result.Detail = shepherd.Cause(plainError{err})
	if wrong, ok := errors.AsType[*remote.HostKeyError](err); ok && q.unreported {
		// The system that was there before is not wrong to answer.
		result.Detail = "another system than the one of its install answers, with the host key " + wrong.Presented
	} else if ok {
		p.observe(q, ResultRefused)
		result.Detail += "; " + wrong.Remedy(q.machine)
		return shepherd.Finish{Changes: []bmdb.Change{bmdb.RefuseHostKey(wrong.Key, wrong.Presented), bmdb.RecordProbe(result)}}
	}
	p.observe(q, ResultUnanswered)
	return shepherd.Finish{Changes: []bmdb.Change{bmdb.RecordProbe(result)}}
}

func (p *Prober) observe(q question, result Result) {
	if p.options.Observed != nil {
		p.options.Observed(q.seenUp.By, result)
	}
}

// question is what is asked of which system, and where.
type question struct {
	machine    fleet.MachineID
	seenUp     fleet.SeenUp
	generation fleet.InstallGeneration
	attempt    int
	// unreported: nobody has heard that the disk was written.
	unreported bool
	// lastCall is when the unit of the system has last called since it was seen up; zero: never.
	lastCall time.Time
	target   remote.Target
}

// question returns what is to be asked of a machine, as of its record.
func (p *Prober) question(ctx context.Context, source Source, r fleet.Record) (question, error) {
	q := question{machine: r.ID}
	await, awaited := lifecycle.AwaitedProbe(r)
	switch {
	case awaited:
		q.seenUp, q.generation, q.attempt, q.unreported = r.InstallRequest.SeenUp, await.Generation, await.Attempt, await.Unreported
	case lifecycle.Watched(r):
		q.seenUp, q.generation, q.attempt = r.Installed.SeenUp, r.Installed.Generation, r.Installed.Attempt
	default:
		return q, fleet.Errorf(fleet.KindConflict, "no probe is wanted of the machine")
	}
	if q.seenUp.By == fleet.SeenByUnit {
		if r.Probe != nil {
			q.lastCall = r.Probe.AnsweredAt
		}
		return q, nil
	}
	if r.Provided == nil || !r.Provided.Address.IsValid() {
		return q, fleet.Errorf(fleet.KindTemporary, "the provider has no public address for the machine")
	}
	q.target.Address = netip.AddrPortFrom(r.Provided.Address, cmp.Or(p.options.Port, 22))
	if source.Config.List {
		if err := q.reachAsListed(ctx, source, r, p.options.User); err != nil {
			return q, err
		}
	}
	keys, err := p.db.HostKeys(ctx, r.ID)
	if err != nil {
		return q, fmt.Errorf("read the known host keys: %w", err)
	}
	q.target.Trust = trust(r, keys, awaited, await.Unreported)
	return q, nil
}

// reachAsListed takes in how a list of hosts says that the machine is reached. User logs in to a
// jump host for which the list names none.
func (q *question) reachAsListed(ctx context.Context, source Source, r fleet.Record, user string) error {
	entry, err := source.Ask(ctx, r.ProviderID)
	if err != nil {
		return fmt.Errorf("ask the provider for the address: %w", err)
	}
	// How the machine is reached is not known.
	if unknown := cmp.Or(entry.Invalid, source.Moved(r.Provided, entry)); unknown != "" {
		return fleet.Errorf(fleet.KindTemporary, "the probe could not be made: %s", unknown)
	}
	if entry.Address.IsValid() {
		q.target.Address = netip.AddrPortFrom(entry.Address, cmp.Or(entry.Access.Port, q.target.Address.Port()))
	}
	if jump := entry.Access.Jump; jump != nil {
		q.target.Via = &remote.Target{
			Address: jump.Address, User: cmp.Or(jump.User, user, "root"), Trust: remote.Trust{Attested: []string{jump.HostKey}},
		}
	}
	return nil
}

// trust is by which host key a system is known: the one that its install brought, or one that a
// person has accepted since its disk was written: before that, such a key is another system's. Once
// it was seen up, it is what the machine is known by.
func trust(r fleet.Record, keys fleet.HostKeys, awaited, unreported bool) remote.Trust {
	if !awaited {
		return remote.Trust{Pinned: keys.Known}
	}
	var known remote.Trust
	if a := r.InstallAttempt; a != nil {
		if key := remote.HostKeyOf(a.HostKey); key != "" {
			known.Injected = []string{key}
		}
		if !unreported && keys.Source == fleet.HostKeyAccepted && keys.At.After(a.At) {
			known.Injected = append(known.Injected, keys.Known...)
		}
	}
	return known
}

// ask asks once, and returns the host key that was verified, if one was.
func (p *Prober) ask(ctx context.Context, q question) (remote.HostKey, error) {
	if p.options.Ask != nil {
		return remote.HostKey{}, p.options.Ask(ctx, q.target.Address.Addr(), q.seenUp, q.generation, q.attempt)
	}
	if q.seenUp.By == fleet.SeenBySSH {
		return p.dialer.Probe(ctx, q.target)
	}
	return remote.HostKey{}, p.get(ctx, q)
}

// outlived reports whether an answer was refused because one of the certificates has expired that
// we were given to verify it by. That is no fault of the system, and the next ones have it too.
func (q question) outlived(err error) bool {
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	return ok && invalid.Reason == x509.Expired && slices.ContainsFunc(q.seenUp.Authorities(), invalid.Cert.Equal)
}

// notMade is why a probe could not be made. It has the same words as long as the reason is the
// same, so that history tells it once. A probe whose turn at the jump host did not come was kept
// from it by what failed the last login there. Where that has not failed, nothing was tried.
func notMade(err error) error {
	missed, waited := errors.AsType[*remote.TurnMissedError](err)
	if waited && missed.Last != nil {
		err = &remote.JumpHostError{Err: missed.Last}
	}
	err = fmt.Errorf("the probe could not be made: %w", plainError{err})
	if waited && missed.Last == nil {
		err = provider.Queued(err)
	}
	return err
}

// plainError is an error with a plain text.
type plainError struct{ error }

func (e plainError) Error() string { return plain(e.error) }
func (e plainError) Unwrap() error { return e.error }

// plain is an error's text without what differs each time, which would make each finding a new one:
// the port that we have called from, and what time it is when a certificate has expired.
func plain(err error) string {
	text := err.Error()
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Source != nil {
		text = strings.ReplaceAll(text, op.Source.String()+"->", "")
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired && invalid.Cert != nil {
		now, cert := invalid.Error(), invalid.Cert
		invalid.Detail = fmt.Sprintf("it is valid from %s to %s (%s)",
			fleet.Instant(cert.NotBefore), fleet.Instant(cert.NotAfter), cert.Subject)
		text = strings.ReplaceAll(text, now, invalid.Error())
	}
	return text
}
