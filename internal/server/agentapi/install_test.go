package agentapi_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// withReport is the first heartbeat of an agent.
func (m *host) withReport() *agentv1.HeartbeatRequest {
	req := m.beat()
	req.HardwareReport = report()
	return req
}

func last(req *agentv1.HeartbeatRequest, order *agentv1.InstallRequest) *agentv1.HeartbeatRequest {
	req.LastInstallGeneration, req.LastInstallAttempt = order.GetInstallGeneration(), order.GetAttempt()
	return req
}

func TestInstallFromFirstHeartbeatToUp(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	m := h.machines(1, image())[0]
	client := h.dial(m.key)
	order := h.heartbeat(client, m.withReport()).GetInstallRequest() // in the same answer
	if order == nil {
		t.Fatal("no install was handed out with the answer to the hardware report")
	}
	token := order.GetBootToken()
	if order.GetInstallGeneration() != 1 || order.GetAttempt() != 1 || order.GetImage().GetCompression() != agentv1.Compression_COMPRESSION_ZSTD ||
		order.GetRootDisk().GetPick() != agentv1.DiskSelector_PICK_SMALLEST || string(order.GetFirstBootData()) != "hello" || !order.GetKexec() || order.GetImage().GetArchitecture() != "arm64" ||
		order.GetTimeoutMs() <= 0 || token.GetEndpoint() != "127.0.0.1:1" || len(token.GetSecret()) != 32 ||
		token.GetMachineId() != string(m.id) || !bytes.Equal(token.GetCaCertificate(), h.certificates.Authority()) {
		t.Errorf("handed out %v", order)
	}

	progress := last(m.beat(), order)
	progress.InstallProgress = &agentv1.InstallProgress{InstallGeneration: 1, Attempt: 1, Phase: agentv1.InstallProgress_PHASE_WRITING, BytesDone: 5, BytesTotal: 9}
	progress.InstallProgress.WaitingFor = "http://images.example/os:\nconnection refused" + strings.Repeat("!", 10_000)
	if again := h.heartbeat(client, progress).GetInstallRequest(); again != nil {
		t.Errorf("handed out twice: %v", again)
	}
	p := h.api.Progress(m.id)
	if p.GetBytesDone() != 5 || !strings.HasPrefix(p.GetWaitingFor(), "http://images.example/os: connection refused!") || len(p.GetWaitingFor()) > 1<<10 {
		t.Errorf("progress is %v", p)
	}

	done := last(m.beat(), order)
	done.InstallReport = &agentv1.InstallReport{InstallGeneration: 1, Attempt: 1, Ok: true, Disk: "/dev/sda", DiskSerial: "S1", DurationMs: 1500, BytesWritten: 9}
	done.InstallReport.Warnings = []string{"make a boot entry: the firmware says\nno", "have the kernel read the partitions: busy"}
	for range 2 { // its answer may be lost
		if again := h.heartbeat(client, done).GetInstallRequest(); again != nil {
			t.Errorf("handed out after it ended: %v", again)
		}
	}
	if r := h.record(m).InstallReport; r == nil || !r.OK || r.Disk != "/dev/sda (serial S1)" || r.Bytes != 9 {
		t.Errorf("recorded %+v", r)
	}
	want := "install generation 1, attempt 1: 9 bytes to /dev/sda (serial S1) in 1.5s; " +
		"warning: make a boot entry: the firmware says no; warning: have the kernel read the partitions: busy"
	if got := h.details(m, fleet.EventDiskWritten); !slices.Equal(got, []string{want}) {
		t.Errorf("history says %q", got)
	}
	if p := h.api.Progress(m.id); p != nil {
		t.Errorf("progress is still %v", p)
	}

	up := &agentv1.ReportUpRequest{MachineId: string(m.id), InstallGeneration: 1, Attempt: 1, Secret: bytes.Clone(token.GetSecret()), BootId: "new"}
	up.Secret[0]++
	if _, err := h.dial(nil).ReportUp(t.Context(), up); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a wrong secret: %v", err)
	}
	up.Secret[0]--
	public, _, err := ed25519.GenerateKey(rand.Reader)
	h.must(err)
	signer, err := ssh.NewPublicKey(public)
	h.must(err)
	key := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer)))
	// What is no key keeps no system from being seen up.
	up.HostKeys = []string{"", key + " root@new", "no key"}
	for range 2 {
		if _, err := h.dial(nil).ReportUp(t.Context(), up); err != nil {
			t.Error(err)
		}
	}
	if i := h.record(m).Installed; i == nil || i.BootID != "new" {
		t.Errorf("recorded %+v", i)
	}
	if known, err := h.db.HostKeys(t.Context(), m.id); err != nil || !slices.Equal(known.Known, []string{key}) {
		t.Errorf("known are %q, %v", known.Known, err)
	}
}

// TestWhoHasNoSecretWritesNothing: anybody may say that a system is up. Without its secret nobody
// keeps others from writing, whatever machine and attempt is named.
func TestWhoHasNoSecretWritesNothing(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	m := h.machines(1, image())[0]
	secret := h.heartbeat(h.dial(m.key), m.withReport()).GetInstallRequest().GetBootToken().GetSecret()
	client := h.dial(nil)
	report := func(machine fleet.MachineID, attempt int32, secret []byte) error {
		_, err := client.ReportUp(t.Context(), &agentv1.ReportUpRequest{
			MachineId: string(machine), InstallGeneration: 1, Attempt: attempt, Secret: secret, BootId: "new",
		})
		return err
	}
	for name, err := range map[string]error{
		"wrong secret":    report(m.id, 1, make([]byte, 32)),
		"wrong attempt":   report(m.id, 2, secret),
		"unknown machine": report(fleet.NewMachineID(), 1, secret),
	} {
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := h.counter.took("installed"); n != 0 {
		t.Errorf("%d transactions that write", n)
	}
	h.must(report(m.id, 1, secret))
	if n := h.counter.took("installed"); n != 1 {
		t.Errorf("%d transactions that write for who has the secret", n)
	}
}

// TestWhoRepeatsItselfWritesNothing: however often a system says that it is up, on however many
// connections, it is written down once.
func TestWhoRepeatsItselfWritesNothing(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	m := h.machines(1, image())[0]
	secret := h.heartbeat(h.dial(m.key), m.withReport()).GetInstallRequest().GetBootToken().GetSecret()
	var calls sync.WaitGroup
	for range 100 {
		client := h.dial(nil)
		calls.Go(func() {
			if _, err := client.ReportUp(t.Context(), &agentv1.ReportUpRequest{
				MachineId: string(m.id), InstallGeneration: 1, Attempt: 1, Secret: secret, BootId: "new",
			}); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if n := h.counter.took("installed"); n != 1 {
		t.Errorf("%d transactions that write", n)
	}
}

// meanwhile is an engine on which something else happens before the next write.
type meanwhile struct {
	bmdb.Engine
	happens atomic.Pointer[func()]
}

func (m *meanwhile) Update(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	if happens := m.happens.Swap(nil); happens != nil {
		(*happens)()
	}
	return m.Engine.Update(ctx, fn)
}

// TestASecretThatGoesOutOfDateMeanwhile: that it was the newest a moment ago does not count.
func TestASecretThatGoesOutOfDateMeanwhile(t *testing.T) {
	t.Parallel()
	engine := &meanwhile{Engine: sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard})}
	h := newFixtureOn(t, engine, nil)
	m := h.machines(1, image())[0]
	lost := h.heartbeat(h.dial(m.key), m.withReport()).GetInstallRequest()
	h.must(h.stop()) // from here on nothing else writes
	agent, err := h.db.Agent(t.Context(), m.id)
	h.must(err)
	happens := func() {
		if next, err := h.db.HandOutInstall(t.Context(), agent, 0, 0); err != nil || next == nil || next.Attempt != 2 {
			t.Errorf("handed out %+v, %v", next, err)
		}
	}
	engine.happens.Store(&happens)
	_, err = h.db.RecordInstalled(t.Context(), m.id, 1, 1, lost.GetBootToken().GetSecret(), "new")
	if i := h.record(m).Installed; fleet.KindOf(err) != fleet.KindForbidden || i != nil || engine.happens.Load() != nil {
		t.Errorf("got %v, recorded %+v", err, i)
	}
}

// TestLostHandOut is I9: after an answer that was lost comes another attempt, never the same.
func TestLostHandOut(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	m := h.machines(1, image())[0]
	client := h.dial(m.key)
	lost := h.heartbeat(client, m.withReport()).GetInstallRequest()
	next := h.heartbeat(client, m.beat()).GetInstallRequest() // the agent does not know of it
	if next.GetAttempt() != lost.GetAttempt()+1 {
		t.Fatalf("after a lost answer: %v", next)
	}
	if again := h.heartbeat(client, last(m.beat(), next)).GetInstallRequest(); again != nil {
		t.Errorf("handed out again: %v", again)
	}
}

// TestHandOutSurvivesARestart is I9: a control plane that was restarted hands nothing out again.
// An agent that never admits to have got its order is not handed attempts without end.
func TestHandOutsAreLimited(t *testing.T) {
	t.Parallel()
	h := newFixture(t, func(c *agentapi.Config, _ *fleet.Policy) {
		c.CallRate = fleet.Rate{Every: time.Microsecond, Burst: 1000}
		c.ReportRate = fleet.Rate{Every: time.Hour, Burst: 4}
	})
	m := h.machines(1, image())[0]
	client := h.dial(m.key)
	h.heartbeat(client, m.withReport())
	for range 50 {
		h.heartbeat(client, m.beat())
	}
	if a := h.record(m).InstallAttempt; a == nil || a.Attempt < 2 || a.Attempt > 4 {
		t.Errorf("the newest attempt is %+v", a)
	}
}

func TestHandOutSurvivesARestart(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	m := h.machines(1, image())[0]
	order := h.heartbeat(h.dial(m.key), m.withReport()).GetInstallRequest()
	h.must(h.stop())
	config := agentapi.DefaultConfig()
	config.Endpoint = "127.0.0.1:1"
	h.api = agentapi.New(h.db, config, agentapi.Options{Logger: discard, Certificates: h.certificates})
	h.start()
	if again := h.heartbeat(h.dial(m.key), last(m.beat(), order)).GetInstallRequest(); again != nil {
		t.Errorf("handed out again after a restart: %v", again)
	}
}

func TestFailedInstallAndOperatorsRequest(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	m := h.machines(1, image())[0]
	client := h.dial(m.key)
	order := h.heartbeat(client, m.withReport()).GetInstallRequest()
	failed := last(m.beat(), order)
	failed.InstallReport = &agentv1.InstallReport{InstallGeneration: 1, Attempt: 1, Error: "no disk\nfits"}
	if again := h.heartbeat(client, failed).GetInstallRequest(); again != nil {
		t.Errorf("handed out in backoff: %v", again)
	}
	if r := h.record(m).InstallReport; r == nil || r.OK || r.Error != "no disk fits" {
		t.Errorf("recorded %+v", r)
	}
	_, err := h.db.Retry(t.Context(), "test", m.id, fleet.ProcessInstall)
	h.must(err)
	var next *agentv1.InstallRequest
	h.until("the retry is handed out", func() bool {
		next = h.heartbeat(client, last(m.beat(), order)).GetInstallRequest()
		return next != nil
	})
	if next.GetInstallGeneration() != 1 || next.GetAttempt() != 2 {
		t.Errorf("got %v", next)
	}
	fail := last(m.beat(), next)
	fail.InstallReport = &agentv1.InstallReport{InstallGeneration: 1, Attempt: 2, Error: "another one is wanted"}
	h.heartbeat(client, fail)
	other := image()
	other.Image.Size++
	generation, err := h.db.RequestInstall(t.Context(), "test", m.id, *other, false)
	h.must(err)
	h.until("the new request is handed out", func() bool {
		return h.heartbeat(client, last(m.beat(), next)).GetInstallRequest().GetInstallGeneration() == int64(generation)
	})
}

// TestARefusedInstallIsHandedOutAgain: somebody may have emptied the disk.
func TestARefusedInstallIsHandedOutAgain(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	m := h.machines(1, image())[0]
	client := h.dial(m.key)
	order := h.heartbeat(client, m.withReport()).GetInstallRequest()
	refused := last(m.beat(), order)
	refused.InstallReport = &agentv1.InstallReport{InstallGeneration: 1, Attempt: 1, Error: "/dev/sda holds a file system", NeedsErase: true}
	if again := h.heartbeat(client, refused).GetInstallRequest(); again != nil {
		t.Errorf("handed out in backoff: %v", again)
	}
	rows, err := h.db.ListMachines(t.Context(), bmdb.MachineFilter{States: []fleet.State{fleet.StateRefused}, Limit: 2})
	if err != nil || len(rows) != 1 {
		t.Errorf("%d machines are refused, %v", len(rows), err)
	}
	_, err = h.db.Retry(t.Context(), "test", m.id, fleet.ProcessInstall)
	h.must(err)
	h.until("the install is handed out again", func() bool {
		return h.heartbeat(client, last(m.beat(), order)).GetInstallRequest().GetAttempt() == 2
	})
}

// TestCalledOffInstallIsTold: the agent hears it with every answer until its report has come, and
// is handed nothing afterwards.
func TestCalledOffInstallIsTold(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	m := h.machines(1, image())[0]
	client := h.dial(m.key)
	order := h.heartbeat(client, m.withReport()).GetInstallRequest()
	working := func() *agentv1.HeartbeatRequest {
		req := last(m.beat(), order)
		req.InstallProgress = &agentv1.InstallProgress{InstallGeneration: 1, Attempt: 1, Phase: agentv1.InstallProgress_PHASE_WRITING, BytesDone: 5}
		return req
	}
	if off := h.heartbeat(client, working()).GetCancelInstall(); off != nil {
		t.Errorf("called off by nobody: %v", off)
	}
	handedOut, err := bmdbtest.CancelInstall(t.Context(), h.db, "op", m.id, "the wrong image")
	if err != nil || !handedOut {
		t.Fatalf("handed out %t, %v", handedOut, err)
	}
	told := func(when string) {
		t.Helper()
		if off := h.heartbeat(client, working()).GetCancelInstall(); off.GetInstallGeneration() != 1 || off.GetAttempt() != 1 {
			t.Errorf("%s it was told %v", when, off)
		}
	}
	told("with the first answer") // after a jump, it begins to write after that
	told("once more")             // an answer may be lost
	h.restart()
	client = h.dial(m.key)
	told("with the first answer of another process")
	if off := h.heartbeat(client, last(m.beat(), order)).GetCancelInstall(); off != nil {
		t.Errorf("told an agent that works at nothing: %v", off)
	}
	ended := last(m.beat(), order)
	ended.InstallReport = &agentv1.InstallReport{InstallGeneration: 1, Attempt: 1, Error: "called off: nothing was written"}
	for range 2 {
		if a := h.heartbeat(client, ended); a.GetCancelInstall() != nil || a.GetInstallRequest() != nil {
			t.Errorf("after its end: %v", a)
		}
	}
	if r := h.record(m); r.InstallReport.Error != "called off: nothing was written" || len(r.Backoffs) != 0 {
		t.Errorf("recorded %+v, %v", r.InstallReport, r.Backoffs)
	}
}

// TestCalledOffAfterItsTime: an agent that is at work at an attempt that was given up is told, too.
func TestCalledOffAfterItsTime(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	policy := fleet.DefaultPolicy()
	policy.InstallTimeout = time.Millisecond
	_, err := h.db.SetPolicy(t.Context(), policy)
	h.must(err)
	m := h.machines(1, image())[0]
	client := h.dial(m.key)
	req := last(m.beat(), h.heartbeat(client, m.withReport()).GetInstallRequest())
	req.InstallProgress = &agentv1.InstallProgress{InstallGeneration: 1, Attempt: 1, Phase: agentv1.InstallProgress_PHASE_WRITING, BytesDone: 5}
	h.until("its time is over", func() bool {
		n, err := h.db.ExpireInstalls(t.Context(), 10)
		h.must(err)
		return n == 1
	})
	if off := h.heartbeat(client, req).GetCancelInstall(); off != nil {
		t.Errorf("called off by nobody: %v", off)
	}
	_, err = bmdbtest.CancelInstall(t.Context(), h.db, "op", m.id, "the wrong image")
	h.must(err)
	if off := h.heartbeat(client, req).GetCancelInstall(); off.GetInstallGeneration() != 1 || off.GetAttempt() != 1 {
		t.Errorf("told %v", off)
	}
}
