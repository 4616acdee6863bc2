package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"os/user"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Caller is who sent a request, and what they may do.
type Caller struct {
	// Actor is recorded in the history: "operator", or the name of the user at the other end of the
	// Unix socket.
	Actor string
	// Read and Write say what is allowed.
	Read, Write bool
	// Refusal says what is missing, for a caller who is not allowed everything.
	Refusal string
}

// Access decides what the callers of an HTTP server may do.
type Access struct {
	token [sha256.Size]byte
	set   bool
}

// NewAccess takes the operator's token. Empty: nobody may change anything over TCP.
func NewAccess(token string) *Access {
	return &Access{token: sha256.Sum256([]byte(token)), set: token != ""}
}

type callerKey struct{}

type peerKey struct{}

// CallerFrom returns the caller that Identify bound to the request's context. Without one it
// returns a caller who may do nothing.
func CallerFrom(ctx context.Context) Caller {
	if c, ok := ctx.Value(callerKey{}).(Caller); ok {
		return c
	}
	return Caller{Actor: "unknown", Refusal: "the caller is not known"}
}

// Identify binds the caller to the request's context. It refuses only requests that a browser makes
// for another site's page, whatever credential they carry.
func (a *Access) Identify(next http.Handler) http.Handler {
	identified := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := a.caller(r)
		settle(w, r, caller)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller)))
	})
	return http.NewCrossOriginProtection().Handler(identified)
}

// RequireRead serves only callers that may read.
func RequireRead(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := CallerFrom(r.Context()); !c.Read {
			countRefusal(r.Context())
			w.Header().Set("WWW-Authenticate", `Basic realm="Ironherd: any user name, the operator's token as password"`)
			http.Error(w, c.Refusal, http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Authorize returns nil for a caller that may do this, else an error of kind Unauthenticated that
// says what is missing.
func Authorize(ctx context.Context, write bool) (Caller, error) {
	c := CallerFrom(ctx)
	if c.Write || c.Read && !write {
		return c, nil
	}
	countRefusal(ctx)
	return c, &fleet.Error{Kind: fleet.KindUnauthenticated, Message: c.Refusal}
}

type connKey struct{}

// withConn binds the limited connection that requests come in on.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, LimitedConnOf(conn))
}

// settle admits the connection of a caller that may read. That of another one ends with the answer.
func settle(w http.ResponseWriter, r *http.Request, caller Caller) {
	conn, _ := r.Context().Value(connKey{}).(*LimitedConn)
	if caller.Read {
		conn.Admit()
		return
	}
	conn.Dismiss()
	w.Header().Set("Connection", "close")
}

// countRefusal counts a request that was refused.
func countRefusal(ctx context.Context) {
	if conn, _ := ctx.Value(connKey{}).(*LimitedConn); conn != nil {
		conn.listener.refusals.Count(RefusedCall, conn.RemoteAddr())
	}
}

func (a *Access) caller(r *http.Request) Caller {
	if name, ok := r.Context().Value(peerKey{}).(string); ok {
		return Caller{Actor: name, Read: true, Write: true}
	}
	scheme, credential, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch {
	case strings.EqualFold(scheme, "Bearer"):
		if a.matches(strings.TrimSpace(credential)) {
			return Caller{Actor: "operator", Read: true, Write: true}
		}
		return Caller{Actor: "unknown", Refusal: "the token is not the operator's"}
	case strings.EqualFold(scheme, "Basic"):
		// A browser sends the password by itself with every request, so it may only read.
		if _, password, ok := r.BasicAuth(); ok && a.matches(password) {
			return Caller{Actor: "operator", Read: true, Refusal: "changes need the operator's token as a bearer token"}
		}
		return Caller{Actor: "unknown", Refusal: "the password is not the operator's token"}
	case !loopback(r):
		return Caller{Actor: "unknown", Refusal: "the operator's token is needed (Authorization: Bearer …)"}
	case !a.set:
		return Caller{Actor: "unknown", Read: true, Refusal: "changes over TCP are off, because no operator's token is configured; use the Unix socket"}
	}
	return Caller{Actor: "unknown", Read: true, Refusal: "changes need the operator's token (Authorization: Bearer …) or the Unix socket"}
}

func (a *Access) matches(token string) bool {
	sum := sha256.Sum256([]byte(token))
	return a.set && subtle.ConstantTimeCompare(sum[:], a.token[:]) == 1
}

// loopback says whether the request comes from this host and names this host. The name keeps out
// pages of other sites whose own name resolves to 127.0.0.1, and reverse proxies, which speak for
// others.
func loopback(r *http.Request) bool {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !remote.Addr().Unmap().IsLoopback() || r.Header.Get("X-Forwarded-For") != "" {
		return false
	}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && !remoteIP(local).IsLoopback() {
		return false
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().IsLoopback()
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
	return context.WithValue(ctx, peerKey{}, name)
}
