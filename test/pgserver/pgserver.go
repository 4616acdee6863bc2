// Package pgserver runs a private PostgreSQL for tests: Debian's server on loopback, at a free
// port, in a temporary directory, as an unprivileged user. One server serves all tests of a binary,
// each in a database of its own.
//
// It dies with the process that started it, however that ends; a directory that was left behind by
// a killed one is removed at the next start. Durability is off where it is not the point (no
// fsync), so that a test pays for what it tests. The default collation is a language's and not the
// order of bytes, as on most servers of the world. A server that cannot be started fails the test:
// it never skips one. `make setup` installs what is needed.
package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ironherd/ironherd/test/freeport"
)

// User is the superuser of every server. Nobody needs a password.
const User = "ironherd"

// Server is a running PostgreSQL.
type Server struct {
	bin, dir string
	port     int
	settings []string
	// credential is whom the server runs as; nil: as ourselves.
	credential *syscall.Credential

	mu      sync.Mutex
	process *process
	names   atomic.Int64
	// free are databases that were lent, by their kind, and are empty again.
	free map[string][]*lent
}

// Options of a server.
type Options struct {
	// Settings such as "max_connections=50", besides those that make it fast.
	Settings []string
	// Durable leaves fsync on.
	Durable bool
}

// Start makes and starts a server. The caller stops it.
func Start(ctx context.Context, o Options) (*Server, error) {
	removeLeftovers()
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin}
	s.settings = append([]string{
		"listen_addresses=127.0.0.1", "max_connections=300", "shared_buffers=64MB", "logging_collector=off", "log_min_messages=fatal",
		"autovacuum_naptime=5s", "max_wal_size=2GB",
		// For tests at SERIALIZABLE, many of which run at a time: a server that runs out of room for what
		// they read, or for how many they are, fails them for no reason.
		"max_pred_locks_per_transaction=2048", "max_prepared_transactions=600",
	}, o.Settings...)
	if !o.Durable {
		s.settings = append(s.settings, "fsync=off", "full_page_writes=off")
	}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	if err := s.Resume(ctx); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// binaries returns the directory of the newest server programs that are installed.
func binaries() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is right
	slices.SortFunc(found, func(a, b string) int { return version(a) - version(b) })
	if len(found) > 0 && version(found[len(found)-1]) >= 15 {
		return filepath.Dir(found[len(found)-1]), nil
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	return "", errors.New("PostgreSQL 15 or later is not installed: run `make setup` (Debian: apt-get install postgresql)")
}

func version(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // 0: not a version
	return n
}

const prefix = "ironherd-pg-"

// removeLeftovers removes the directories of processes that are gone.
func removeLeftovers() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*")) // the pattern is right
	for _, dir := range dirs {
		of, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), prefix), "-")
		if pid, err := strconv.Atoi(of); err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir)
		}
	}
}

// prepare makes the directory of the server.
func (s *Server) prepare(ctx context.Context) (err error) {
	if s.dir, err = os.MkdirTemp("", fmt.Sprintf("%s%d-", prefix, os.Getpid())); err != nil {
		return err
	}
	if os.Getuid() == 0 {
		if s.credential, err = unprivileged(); err != nil {
			return err
		}
		if err := os.Chown(s.dir, int(s.credential.Uid), int(s.credential.Gid)); err != nil {
			return err
		}
	}
	initdb := exec.CommandContext(ctx, filepath.Join(s.bin, "initdb"), "-D", s.data(), "-U", User, "-A", "trust", "--no-sync",
		"-E", "UTF8", "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en")
	initdb.Dir = s.dir
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: s.credential}
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

func unprivileged() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// Resume starts the server, after Stop at the same port.
func (s *Server) Resume(ctx context.Context) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 5 {
		port := s.port
		if port == 0 {
			if port, err = freeport.Find(ctx); err != nil {
				return err
			}
		}
		if s.process, err = s.launch(ctx, port); err == nil {
			s.port = port
			return nil
		}
		if s.port != 0 || ctx.Err() != nil {
			break
		}
	}
	return err
}

// process is the server's first process.
type process struct {
	command *exec.Cmd
	log     bytes.Buffer
	ended   chan struct{}
}

func (s *Server) launch(ctx context.Context, port int) (*process, error) {
	args := []string{"-D", s.data(), "-p", strconv.Itoa(port), "-k", s.dir}
	for _, setting := range s.settings {
		args = append(args, "-c", setting)
	}
	p := &process{command: exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(s.bin, "postgres"), args...), ended: make(chan struct{})}
	p.command.Dir = s.dir
	p.command.Stdout, p.command.Stderr = &p.log, &p.log
	p.command.WaitDelay = time.Second
	p.command.SysProcAttr = &syscall.SysProcAttr{Credential: s.credential, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // it dies with this thread, which must therefore stay
		defer runtime.UnlockOSThread()
		err := p.command.Start()
		started <- err
		if err == nil {
			_ = p.command.Wait() // how it ended does not matter
		}
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	if err := awaitReady(ctx, p, port); err != nil {
		_ = p.command.Process.Kill()
		<-p.ended
		return nil, fmt.Errorf("%w: %s", err, p.log.String())
	}
	return p, nil
}

func awaitReady(ctx context.Context, p *process, port int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := pgx.Connect(ctx, address(port, "postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-p.ended:
			return errors.New("PostgreSQL ended at once")
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL is not ready: %w", err)
		case <-ticker.C:
		}
	}
}

func address(port int, database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(User), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Path: "/" + database}
	return u.String() + "?sslmode=disable"
}

// URL is the address of a database of the server.
func (s *Server) URL(database string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return address(s.port, database)
}

// Create makes an empty database, or one like the template, and returns its name.
func (s *Server) Create(ctx context.Context, template string) (name string, err error) {
	name = fmt.Sprintf("test%d", s.names.Add(1))
	query := "CREATE DATABASE " + name
	if template != "" {
		query += " TEMPLATE " + template
	}
	return name, s.Exec(ctx, "postgres", query)
}

// Drop removes a database, whoever uses it.
func (s *Server) Drop(ctx context.Context, name string) error {
	return s.Exec(ctx, "postgres", "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
}

// Exec runs statements in a database, each for itself.
func (s *Server) Exec(ctx context.Context, database string, statements ...string) error {
	conn, err := pgx.Connect(ctx, s.URL(database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// Stop ends the server at once, as a crash does; Resume brings it back.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return
	}
	// immediate shutdown; it may have ended already
	_ = s.process.command.Process.Signal(syscall.SIGQUIT)
	<-s.process.ended
	s.process = nil
}

// Standby says, while the server is stopped, what it is when it comes back: a standby, which takes
// no changes, or a primary.
func (s *Server) Standby(standby bool) error {
	signal := filepath.Join(s.data(), "standby.signal") // §27.2.4 of PostgreSQL's manual
	if standby {
		return os.WriteFile(signal, nil, 0o644)
	}
	return os.Remove(signal)
}

// Keep writes a file of the server's own, such as a key, into its directory of data, in one step.
func (s *Server) Keep(name string, content []byte) error {
	path := filepath.Join(s.data(), name)
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	if s.credential != nil {
		if err := os.Chown(path+".new", int(s.credential.Uid), int(s.credential.Gid)); err != nil {
			return err
		}
	}
	return os.Rename(path+".new", path)
}

// Close ends the server and removes its directory.
func (s *Server) Close() error {
	s.Stop()
	return s.remove()
}

func (s *Server) remove() error {
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}
