package resources

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/manifest"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// TestUnsettledManifests: a manifest that was written just now may be half of what it is to become.
// A pass goes on without its news, deletes nothing, and asks for another pass; who tells what the
// manifests say waits.
func TestUnsettledManifests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		write(after("one") + after("two"))
		a, err := New(&rest.Config{Host: "https://192.0.2.11:6443"}, Options{Manifests: dir}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		begun := time.Now()
		if s := a.Source(t.Context()); s.Objects != 2 || !s.Whole() || time.Since(begun) != DefaultSettled {
			t.Errorf("at first: %+v after %v", s, time.Since(begun))
		}
		write(after("one"))
		w := a.want(t.Context())
		if s := w.source(); w.whole || s.Whole() || s.Objects != 2 || len(w.faults) != 0 {
			t.Errorf("half of it, written just now: %+v, %v", s, w.faults)
		}
		s := newSession(a)
		newPass(s, w).wake(nil)
		<-a.Changed()
		s.end()
		if w = a.want(t.Context()); !w.whole || w.source().Objects != 1 || time.Since(begun) != 2*DefaultSettled {
			t.Errorf("%+v after %v", w.source(), time.Since(begun))
		}
		go func() { // somebody writes it all the time
			for n := range 30 {
				time.Sleep(time.Second)
				write(after("one") + after(fmt.Sprint("n", n)))
			}
		}()
		time.Sleep(time.Second + time.Second/2) // never at the same time
		begun = time.Now()
		if s := a.Source(t.Context()); s.Objects != 1 || s.Whole() || time.Since(begun) != manifest.Limit {
			t.Errorf("written all the time: %+v after %v", s, time.Since(begun))
		}
		if faults := fmt.Sprint(a.Faults(t.Context())); !strings.Contains(faults, "all.yaml it changes all the time") {
			t.Errorf("what is wrong: %s", faults)
		}
		time.Sleep(time.Minute)
	})
}

// TestUnsettledIsNoBreak: what has gone from one manifest is missing without a break while others
// are written. It is not while something cannot be read: it may be in there.
func TestUnsettledIsNoBreak(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		a, err := New(&rest.Config{Host: "https://192.0.2.11:6443"}, Options{Manifests: dir}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		s := newSession(a)
		defer s.end()
		gone := object.Key{Kind: "ConfigMap", Namespace: "default", Name: "gone"}
		begun := time.Now()
		s.absent[gone] = begun
		for n := range 20 {
			write(after(fmt.Sprint("n", n)))
			newPass(s, a.want(t.Context()))
			time.Sleep(3 * time.Second)
			newPass(s, a.want(t.Context()))
		}
		if s.absent[gone] != begun {
			t.Error("a manifest that changes often makes what has gone from others seem to be back")
		}
		write("")
		a.wantSettled(t.Context())
		if newPass(s, a.want(t.Context())); !s.absent[gone].IsZero() {
			t.Error("it may be in what cannot be read")
		}
	})
}

// TestUnknownManifests: until the manifests have been read for the first time, what another release
// has left is not looked at: it may be in them now.
func TestUnknownManifests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(after("one")), 0o600); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, unknown := range []bool{true, false} {
		var a *Applier
		var w *wanted
		for range 1000 { // mostly the first one: nobody waits for the reading
			var err error
			if a, err = New(&rest.Config{Host: "https://192.0.2.11:6443"}, Options{Manifests: dir}, slog.New(slog.DiscardHandler)); err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			if w = a.want(map[bool]context.Context{true: ended, false: t.Context()}[unknown]); w.unknown == unknown {
				break
			}
		}
		s := newSession(a)
		defer s.end()
		left := object.Key{Group: "example.com", Kind: "Left"}
		s.ledger.created(left, "uid", object.Required)
		s.kinds, s.kindsAt = &api.Kinds{}, time.Now()
		p := newPass(s, w)
		if err := p.prune(t.Context(), true); err != nil || p.blocked || len(s.vanished) != map[bool]int{true: 0, false: 1}[unknown] {
			t.Errorf("unknown %v: %v, blocked %v, looked at %v", unknown, err, p.blocked, s.vanished)
		}
	}
}
