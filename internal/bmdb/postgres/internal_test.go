package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
)

// TestServerTime: the truth is between two readings; neither goes back, unless the server's clock
// does.
func TestServerTime(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := newServerTime(slog.New(slog.NewTextHandler(&log, nil)))
	if s.fresh() {
		t.Error("fresh before anybody was asked")
	}
	said := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	heard := s.clock.Elapsed()
	const trip = 300 * time.Millisecond
	s.learn(t.Context(), said, heard-trip, heard)
	if !s.fresh() {
		t.Error("not fresh")
	}
	earliest, latest := s.earliest(), s.latest()
	if earliest.Before(said) || latest.Before(earliest.Add(trip)) || latest.After(earliest.Add(trip+10*time.Second)) {
		t.Errorf("between %s and %s, said %s", earliest, latest, said)
	}
	// a slower answer than the last
	s.learn(t.Context(), said.Add(-100*time.Millisecond), s.clock.Elapsed()-trip, s.clock.Elapsed())
	if got := s.earliest(); got.Before(earliest) {
		t.Errorf("went back from %s to %s", earliest, got)
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", log.String())
	}
	// one that came back late, and the next, which did not: neither says that the clock was set
	now := s.earliest()
	for _, late := range []time.Duration{2 * time.Second, 0} {
		heard := s.clock.Elapsed()
		s.learn(t.Context(), now.Add(-late), heard-late, heard)
	}
	if log.Len() > 0 {
		t.Errorf("the clock was not set: logged %s", log.String())
	}
	for _, set := range []time.Duration{time.Hour, -2 * time.Hour} {
		log.Reset()
		said = said.Add(set)
		s.learn(t.Context(), said, s.clock.Elapsed(), s.clock.Elapsed())
		if got := s.earliest(); got.Before(said) || got.After(said.Add(time.Minute)) || log.Len() == 0 {
			t.Errorf("the clock was set by %s: %s, want %s; logged %q", set, got, said, log.String())
		}
	}
}

// TestRetries: what others undid is run again, a bounded number of times, and nothing else is.
func TestRetries(t *testing.T) {
	t.Parallel()
	server := pgserver.Shared(t)
	e, err := Open(t.Context(), server.URL("postgres"), Options{Silent: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	for _, c := range []struct {
		err  error
		runs int
		kind fleet.Kind
	}{
		{&pgconn.PgError{Code: codeSerialization}, maxAttempts, fleet.KindTemporary},
		{&pgconn.PgError{Code: codeDeadlock}, maxAttempts, fleet.KindTemporary},
		{&pgconn.PgError{Code: codeLockTimeout}, 1, fleet.KindTemporary},
		{&pgconn.PgError{Code: codeIdleInTx}, 1, fleet.KindTemporary},
		{&pgconn.PgError{Code: codeLongTx}, 1, fleet.KindTemporary},
		{&pgconn.PgError{Code: codeDuplicateKey}, 1, fleet.KindUnknown},
		{fleet.ErrLeaseLost, 1, fleet.KindLeaseLost},
	} {
		runs := 0
		err := e.Update(t.Context(), func(context.Context, bmdb.Tx) error { runs++; return c.err })
		if runs != c.runs || fleet.KindOf(err) != c.kind || !errors.Is(err, c.err) {
			t.Errorf("%v: %d runs, %s: %v", c.err, runs, fleet.KindOf(err), err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	runs := 0
	err = e.Update(ctx, func(context.Context, bmdb.Tx) error {
		runs++
		cancel()
		return &pgconn.PgError{Code: codeSerialization}
	})
	if runs != 1 || err == nil {
		t.Errorf("%d runs under a context that is over, %v", runs, err)
	}
}

// TestStorable: what this engine cannot store is replaced, in text and in lists of it.
func TestStorable(t *testing.T) {
	t.Parallel()
	got := storable([]any{"a\x00b", []string{"\xff", "c"}, int64(1), []int64{2}})
	if want := []any{"a\uFFFDb", []string{"\uFFFD", "c"}, int64(1), []int64{2}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestAVanishedServerIsGivenUp: the kernel ends a connection whose other end acknowledges nothing,
// so that nobody waits for a host without power for longer than two leases.
func TestAVanishedServerIsGivenUp(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := dialer(5*time.Second).DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: 10_000, unix.TCP_KEEPIDLE: 5, unix.TCP_KEEPINTVL: 2, unix.TCP_KEEPCNT: 2} {
		var got int
		var failed error
		if err := raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option) }); err != nil || failed != nil {
			t.Fatal(err, failed)
		}
		if got < want || got > want+1 {
			t.Errorf("option %d is %d, want %d", option, got, want)
		}
	}
}

// TestWhatDoesNotFitIntoANotification: the others are told that anything may be due.
func TestWhatDoesNotFitIntoANotification(t *testing.T) {
	t.Parallel()
	n := &notifier{self: "me", pending: make(map[bmdb.Entry]time.Time), waiting: make(chan struct{}, 1)}
	read := func() (due map[bmdb.Entry]time.Time) {
		text := n.payload()
		var m message
		if err := json.Unmarshal([]byte(text), &m); err != nil || m.From != "me" || len(text) > maxPayload {
			t.Fatalf("%d bytes: %v", len(text), err)
		}
		return m.due()
	}
	if text := n.payload(); text != "" {
		t.Errorf("told %q, and nothing is due", text)
	}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	some := map[bmdb.Entry]time.Time{{Process: fleet.ProcessInstall, Provider: "p"}: at, {Process: fleet.ProcessRecovery}: at}
	n.add(some)
	if got := read(); !maps.Equal(got, some) {
		t.Errorf("told %v", got)
	}
	for i := range 200 {
		n.add(map[bmdb.Entry]time.Time{{Process: fleet.ProcessInstall, Provider: fleet.ProviderName(fmt.Sprintf("provider-%d", i))}: at})
	}
	if got := read(); got != nil {
		t.Errorf("told %d entries", len(got))
	}
	if len(n.pending) != 0 {
		t.Errorf("%d entries are told again", len(n.pending))
	}
}
