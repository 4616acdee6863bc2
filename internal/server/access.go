package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

// Caller is who sent a request, and what they may do.
type Caller struct {
	// Actor is recorded in the history: the name of the user at the other end of the Unix socket, or
	// "token" and the name of the token.
	Actor string
	// Role is what the caller may do.
	Role token.Role
	// Refusal says what is missing, for a caller who may not do everything.
	Refusal string
}

// May returns nil when the caller may do what needs the role. Else it returns an error that says
// what is missing: of kind Unauthenticated when nobody knows who calls, and of kind Forbidden when
// their role is not enough.
func (c Caller) May(needed token.Role) error {
	switch {
	case c.Role.Covers(needed):
		return nil
	case c.Role == token.None:
		return &fleet.Error{Kind: fleet.KindUnauthenticated, Message: c.Refusal}
	case c.Refusal != "":
		return &fleet.Error{Kind: fleet.KindForbidden, Message: c.Refusal}
	}
	return fleet.Errorf(fleet.KindForbidden, "%s has the role %s, and this needs the role %s", c.Actor, c.Role, needed)
}

// Tokens finds tokens by their text; token.File does.
type Tokens interface {
	Find(text string) (found token.Token, ok bool, err error)
}

// Access tells who the callers of an HTTP server are. It trusts the Unix socket and tokens, and
// nothing else: over TCP, an address says nothing, because proxies speak for others.
type Access struct {
	tokens Tokens
	logger *slog.Logger

	mu sync.Mutex
	// told is when each token that has expired was last said to be used still, by its name.
	told map[string]time.Time
}

// NewAccess takes the tokens; nil: there are none. The logger gets who is refused that was not
// before.
func NewAccess(tokens Tokens, logger *slog.Logger) *Access {
	return &Access{tokens: tokens, logger: logger, told: make(map[string]time.Time)}
}

// caller says who sends a request, by its header and its connection. It reads nothing else, and
// blocks for no longer than it takes to look at a file.
func (a *Access) caller(r *http.Request) Caller {
	if user, _ := r.Context().Value(userKey{}).(string); user != "" {
		return Caller{Actor: user, Role: token.Admin}
	}
	scheme, credential, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch {
	case strings.EqualFold(scheme, "Bearer"):
		return a.holder(r, strings.TrimSpace(credential))
	case strings.EqualFold(scheme, "Basic"):
		_, password, ok := r.BasicAuth()
		if !ok {
			return stranger("the Authorization header cannot be read")
		}
		c := a.holder(r, password)
		if c.Role.Covers(token.Operator) {
			// A browser sends the password by itself with every request, so it may only read.
			c.Role, c.Refusal = token.Viewer, "changes need the token as a bearer token (Authorization: Bearer …), not as a password"
		}
		return c
	}
	return stranger("a token is needed: make one on the control plane's host with `ironherd token create NAME --role ROLE`, and name its file with --token-file " +
		"(in HTTP: Authorization: Bearer …), or use the Unix socket of the control plane")
}

func stranger(refusal string) Caller { return Caller{Actor: "unknown", Refusal: refusal} }

// holder is the caller who shows a token.
func (a *Access) holder(r *http.Request, text string) Caller {
	if a.tokens == nil {
		return stranger("this control plane has no tokens: make one on its host with `ironherd token create NAME --role ROLE`, or use the Unix socket")
	}
	t, ok, err := a.tokens.Find(text)
	switch {
	case err != nil:
		return stranger("the tokens cannot be read at the moment; the control plane's log says why")
	case !ok:
		return stranger("the token is not known here: it may have been revoked")
	case t.Expired(time.Now()):
		a.tellExpired(r, t)
		return stranger("the token " + t.Name + " has expired at " + fleet.Instant(t.Expires))
	}
	return Caller{Actor: "token " + t.Name, Role: t.Role}
}

// tellExpired logs that somebody uses a token which has expired, of each at most once a minute.
func (a *Access) tellExpired(r *http.Request, t token.Token) {
	now := time.Now()
	a.mu.Lock()
	last, before := a.told[t.Name]
	due := !before || now.Sub(last) >= refusalSpacing
	if due {
		a.told[t.Name] = now
	}
	a.mu.Unlock()
	if due {
		a.logger.WarnContext(r.Context(), "a token that has expired is still used", slog.String("token", t.Name), slog.String("role", string(t.Role)),
			slog.String("expired", fleet.Instant(t.Expires)), slog.String("from", r.RemoteAddr))
	}
}

type callerKey struct{}

// userKey has the name of the user at the other end of the Unix socket; over TCP there is none.
type userKey struct{}

// CallerFrom returns the caller that Identify bound to the request's context. Without one it
// returns a caller who may do nothing.
func CallerFrom(ctx context.Context) Caller {
	if c, ok := ctx.Value(callerKey{}).(Caller); ok {
		return c
	}
	return stranger("the caller is not known")
}

// PageActor is for whom the web page asks what all of its viewers see. No token and no user has
// that name.
const PageActor = "the page"

// AsReader binds a caller who may read to a context, for what this process asks itself.
func AsReader(ctx context.Context, actor string) context.Context {
	return context.WithValue(ctx, callerKey{}, Caller{Actor: actor, Role: token.Viewer})
}

// Identify binds the caller to the request's context. It refuses only requests that a browser makes
// for another site's page, whatever credential they carry.
func (a *Access) Identify(next http.Handler) http.Handler {
	identified := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := a.caller(r)
		defer settle(w, r, caller)()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller)))
	})
	return http.NewCrossOriginProtection().Handler(identified)
}

// May returns the error of Caller.May for who sent a request, by the table and by the tokens as
// they are now. So a request that goes on for long can be judged again.
func (a *Access) May(r *http.Request, needs map[string]token.Role) error {
	return a.caller(r).May(Needed(needs, r.URL.Path))
}

// Needed returns the role that a path needs by a table: its own, else that of "/", which stands for
// all others, else the highest.
func Needed(needs map[string]token.Role, path string) token.Role {
	for _, row := range []string{path, "/"} {
		if needed, ok := needs[row]; ok {
			return needed
		}
	}
	return token.Admin
}

// Guard serves only callers whose role covers what the path needs by the table. It refuses the
// others without a look at the body.
func Guard(needs map[string]token.Role, next http.Handler) http.Handler {
	refusals := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := CallerFrom(r.Context()).May(Needed(needs, r.URL.Path))
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		CountRefusal(r.Context(), RefusedCall)
		if r.ProtoMajor == 1 && r.Body != http.NoBody {
			w.Header().Set("Connection", "close") // else the server waits for the body before it answers
		}
		status := StatusOf(err)
		// What says so of itself by its content is a call. One by GET says so by its message
		// (connectrpc.com/docs/protocol, "Unary-Get-Request").
		if refusals.IsSupported(r) && (r.Method != http.MethodGet || r.URL.Query().Has("message")) {
			// It fails only when the caller has gone.
			_ = refusals.Write(w, r, connect.NewError(status.Connect(), errors.New(Message(err))))
			return
		}
		if fleet.KindOf(err) == fleet.KindUnauthenticated {
			w.Header().Set("WWW-Authenticate", `Basic realm="Ironherd: any user name, a token as password"`)
		}
		http.Error(w, Message(err), status.HTTP)
	})
}

// Authorize returns nil for a caller that may do what needs the role, else the error of Caller.May.
func Authorize(ctx context.Context, needed token.Role) (Caller, error) {
	c := CallerFrom(ctx)
	return c, c.May(needed)
}

type connKey struct{}

// withConn binds the limited connection that requests come in on.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, LimitedConnOf(conn))
}

// settle admits the connection of a caller who is known, until done is called and for a while. That
// of another one ends with the answer, unless it is shared: over HTTP/2, a proxy puts the calls of
// many on one, and those of the others are not to be cut.
func settle(w http.ResponseWriter, r *http.Request, caller Caller) (done func()) {
	conn, _ := r.Context().Value(connKey{}).(*LimitedConn)
	if caller.Role != token.None {
		return conn.Carrying(caller.Actor)
	}
	if r.ProtoMajor == 1 || !conn.Carries() {
		conn.Dismiss()
		w.Header().Set("Connection", "close")
	}
	return func() {}
}

// CountRefusal counts a request that came over TCP and was refused.
func CountRefusal(ctx context.Context, why Refusal) {
	if conn, _ := ctx.Value(connKey{}).(*LimitedConn); conn != nil {
		conn.listener.refusals.Count(why, conn.RemoteAddr())
	}
}

// withPeer is the ConnContext of an http.Server. On a Unix socket it binds the name of the user at
// the other end, which the kernel vouches for.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return ctx
	}
	var credentials *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) {
		credentials, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if controlErr != nil || err != nil {
		return ctx
	}
	uid := strconv.FormatUint(uint64(credentials.Uid), 10)
	name := "uid " + uid
	if u, err := user.LookupId(uid); err == nil {
		name = u.Username
	}
	return context.WithValue(ctx, userKey{}, name)
}
