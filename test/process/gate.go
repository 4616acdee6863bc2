package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
)

// Moment is when a request is at a gate.
type Moment string

// The moments. Nothing has happened before; after has happened what was asked for, and the reply is
// not on its way yet.
const (
	Before Moment = "before"
	After  Moment = "after"
)

// Gate stands between a control plane and the API of a world. It counts what passes, and a test can
// stop it at the very moment that it wants.
type Gate struct {
	server *http.Server
	url    string

	mu     sync.Mutex
	hook   func(r *http.Request, action string, at Moment) (cut bool)
	passed map[string]int
}

type gateKey struct{}

// NewGate listens on loopback, until it is closed, and forwards to the origin of the URL.
func NewGate(ctx context.Context, origin string) (*Gate, error) {
	to, err := url.Parse(origin)
	if err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &Gate{url: "http://" + listener.Addr().String() + to.Path, passed: map[string]int{}}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host },
		ModifyResponse: func(r *http.Response) error {
			action, _ := r.Request.Context().Value(gateKey{}).(string)
			if r.StatusCode < 300 {
				g.mu.Lock()
				g.passed[action]++
				g.mu.Unlock()
			}
			if g.stopped(r.Request, action, After) {
				return errors.New("cut")
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	g.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		action := actionOf(r)
		if g.stopped(r, action, Before) {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), gateKey{}, action)))
	})}
	go func() { _ = g.server.Serve(listener) }()
	return g, nil
}

// URL is where the API is found behind the gate.
func (g *Gate) URL() string { return g.url }

// Close ends all connections.
func (g *Gate) Close() { _ = g.server.Close() }

// Stop has the hook called with each request, and again with its reply. A hook that returns true
// cuts the connection. It may block. Nil lets everything pass.
func (g *Gate) Stop(hook func(r *http.Request, action string, at Moment) (cut bool)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hook = hook
}

// Passed is how often an action succeeded: "reboot DEVICE", "DELETE DEVICE", "GET DEVICE", and so
// on.
func (g *Gate) Passed(action string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.passed[action]
}

func (g *Gate) stopped(r *http.Request, action string, at Moment) bool {
	g.mu.Lock()
	hook := g.hook
	g.mu.Unlock()
	return hook != nil && hook(r, action, at)
}

// actionOf names what a request asks for, and the device that it asks it of.
func actionOf(r *http.Request) string {
	_, rest, found := strings.Cut(r.URL.Path, "/devices/")
	if !found {
		return r.Method + " " + r.URL.Path
	}
	device, what, _ := strings.Cut(rest, "/")
	if what == "actions" {
		return typeOf(r) + " " + device
	}
	return r.Method + " " + device
}

// typeOf is the type in the body of a request, which stays whole.
func typeOf(r *http.Request) string {
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	var what struct{ Type string }
	if err != nil || json.Unmarshal(body, &what) != nil {
		return ""
	}
	return what.Type
}
