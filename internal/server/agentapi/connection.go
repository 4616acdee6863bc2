package agentapi

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync/atomic"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
)

// connection is what is known of one TLS connection. The handshake has proven that the caller holds
// the key.
type connection struct {
	credentials.TLSInfo
	key     ed25519.PublicKey // nil when the caller showed no certificate with an Ed25519 key
	limiter *rate.Limiter
	limited *server.LimitedConn
	remote  net.Addr
	// unheeded is how many calls were throttled since the caller has paused last.
	unheeded atomic.Int32
}

// mostUnheeded is how many calls without a pause are throttled on one connection. An agent calls
// again at its next interval; who does not heed that is cut off.
const mostUnheeded = 300

// throttled reports whether calls come too often. It closes the connection of a caller who has been
// told so again and again.
func (c *connection) throttled() bool {
	if c.limiter.Allow() {
		if c.limiter.Tokens() >= 1 { // it has paused
			c.unheeded.Store(0)
		}
		return false
	}
	if c.unheeded.Add(1) > mostUnheeded {
		c.limited.CutOff()
	}
	return true
}

// connectionOf returns the connection that a call came in on.
func connectionOf(ctx context.Context) *connection {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(*connection); ok {
			return c
		}
	}
	// It is not one of ours: nothing is allowed.
	return &connection{limiter: rate.NewLimiter(0, 0), remote: &net.TCPAddr{}}
}

// handshaker is gRPC's TLS, with a limiter for each connection.
type handshaker struct {
	credentials.TransportCredentials
	rate fleet.Rate
	// recognize admits the connection if the key is that of the machine's agent.
	recognize func(conn *server.LimitedConn, machine string, key ed25519.PublicKey)
}

func newHandshaker(config *tls.Config, rate fleet.Rate, recognize func(*server.LimitedConn, string, ed25519.PublicKey)) handshaker {
	return handshaker{TransportCredentials: credentials.NewTLS(config), rate: rate, recognize: recognize}
}

// ServerHandshake implements credentials.TransportCredentials.
func (h handshaker) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := h.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	c := &connection{limiter: newLimiter(h.rate), limited: server.LimitedConnOf(raw), remote: raw.RemoteAddr()}
	if tlsInfo, ok := info.(credentials.TLSInfo); ok {
		c.TLSInfo = tlsInfo
		c.key = keyOf(tlsInfo.State.PeerCertificates)
	}
	// The first message of an agent may be a large report, so its connection is admitted before.
	if c.key != nil {
		h.recognize(c.limited, c.State.PeerCertificates[0].Subject.CommonName, c.key)
	}
	return conn, c, nil
}

// Clone implements credentials.TransportCredentials.
func (h handshaker) Clone() credentials.TransportCredentials {
	return handshaker{TransportCredentials: h.TransportCredentials.Clone(), rate: h.rate, recognize: h.recognize}
}

func keyOf(chain []*x509.Certificate) ed25519.PublicKey {
	if len(chain) == 0 {
		return nil
	}
	key, _ := chain[0].PublicKey.(ed25519.PublicKey)
	return key
}

func newLimiter(r fleet.Rate) *rate.Limiter { return rate.NewLimiter(rate.Every(r.Every), r.Burst) }
