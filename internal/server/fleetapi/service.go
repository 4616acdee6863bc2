package fleetapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/token"
)

// Bounds of one request in bytes. The largest thing in one that changes something is first-boot
// data.
const (
	maxChange   = 256 << 10
	maxQuestion = 16 << 10
)

// Options is what a service is built with besides the database.
type Options struct {
	Logger *slog.Logger
	// Version of this program; Database and Schema of the engine that is open.
	Version  string
	Database string
	Schema   int64
	// Images are the catalogue: what has a name for those who ask for an install.
	Images []fleet.Image
	// Progress returns how far the install of a machine is. It may be nil where no agent API runs in
	// this process.
	Progress func(fleet.MachineID) *agentv1.InstallProgress
	// Pacing returns how calls to a provider are paced, in one clause; "" for one that is not called.
	// It may be nil.
	Pacing func(fleet.ProviderName) string
	// Certificates are those that this process proves itself with.
	Certificates []*server.Certificates
	// Tokens are those of callers over TCP; nil where this process listens on the socket alone.
	// Exposed: other hosts can call, so that one ought to count.
	Tokens  *token.File
	Exposed bool
	// Endpoint is where agents are told to call; "" where neither the agent API nor the initializer
	// runs in this process.
	Endpoint string
	// Findings returns what the checks of the database have found wrong. It may be nil where no
	// janitor runs in this process.
	Findings func() []bmdb.Finding
	// Failing returns which duties of the janitor have failed each time since before an instant, the
	// one that does so for longest first, and of that one since when and why. It may be nil where no
	// janitor runs in this process.
	Failing func(before time.Time) (duties []string, since time.Time, cause string)
	// Writable says why the database takes no changes; nil when it does. It may be nil.
	Writable func(context.Context) error
}

// Service is the operators' API. Its methods may be called directly, as the page does, with a
// context that came through server.Access; over the network they are reached through Register.
type Service struct {
	db      *bmdb.DB
	options Options
	turns   turns

	mu sync.Mutex
	// neverDone is since when a process is seen to be due that was never done on some subject.
	neverDone map[fleet.Process]time.Time
}

var _ fleetv1connect.FleetServiceHandler = (*Service)(nil)

// New returns the service over a database.
func New(db *bmdb.DB, options Options) *Service {
	if options.Progress == nil {
		options.Progress = func(fleet.MachineID) *agentv1.InstallProgress { return nil }
	}
	return &Service{db: db, options: options, turns: newTurns(), neverDone: make(map[fleet.Process]time.Time)}
}

// Register adds the service to a mux that is behind server.Access.Identify and a server.Guard of
// Needs: Connect, gRPC, gRPC-Web, and gRPC's reflection.
func (s *Service) Register(mux *http.ServeMux) {
	byCall := connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
		if neededBy(spec.Procedure).Covers(token.Operator) {
			return append(s.knownOnly(), connect.WithReadMaxBytes(maxChange))
		}
		return []connect.HandlerOption{connect.WithReadMaxBytes(maxQuestion)}
	})
	options := []connect.HandlerOption{byCall, connect.WithCompressMinBytes(1 << 10)}
	mux.Handle(fleetv1connect.NewFleetServiceHandler(s, options...))
	reflector := grpcreflect.NewStaticReflector(fleetv1connect.FleetServiceName)
	mux.Handle(grpcreflect.NewHandlerV1(reflector, options...))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, options...))
}

// answer authorizes the caller, waits for their turn, and runs the method. Its error has the code
// of its kind.
func answer[A any](
	ctx context.Context, s *Service, procedure string, method func(ctx context.Context, actor string) (*A, error),
) (*A, error) {
	return answerAtOnce(ctx, s, procedure, func(ctx context.Context, actor string) (*A, error) {
		leave, err := s.enter(ctx, procedure, actor)
		if err != nil {
			return nil, err
		}
		defer leave()
		return method(ctx, actor)
	})
}

// answerAtOnce is answer for what the database is not asked for.
func answerAtOnce[A any](
	ctx context.Context, s *Service, procedure string, method func(ctx context.Context, actor string) (*A, error),
) (*A, error) {
	caller, err := server.Authorize(ctx, neededBy(procedure))
	if err != nil {
		return nil, s.fail(ctx, err)
	}
	a, err := method(ctx, caller.Actor)
	if err != nil {
		return nil, s.fail(ctx, err)
	}
	return a, nil
}

// fail returns the error that the caller gets, and logs what the caller must not see. A caller that
// has not gone away, and was cut off all the same, gets why.
func (s *Service) fail(ctx context.Context, err error) error {
	status := server.StatusOf(err)
	if cause := context.Cause(ctx); status.Connect() == connect.CodeCanceled && fleet.KindOf(cause) != fleet.KindUnknown {
		err, status = cause, server.StatusOf(cause)
	}
	if fleet.KindOf(err) == fleet.KindUnknown && (ctx.Err() == nil || status.Connect() != connect.CodeCanceled) {
		s.options.Logger.ErrorContext(ctx, "cannot answer an operator", slog.Any("err", err))
	}
	failed := connect.NewError(status.Connect(), errors.New(server.Message(err)))
	if after := fleet.RetryAfter(err); after > 0 {
		failed.Meta().Set("Retry-After", strconv.Itoa(int((after+time.Second-1)/time.Second)))
	}
	return failed
}
