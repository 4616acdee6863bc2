package remote

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestARefusalBehindAJumpHost: once a host has refused our key, the SSH library ends the
// connection, and then reads the end of it. That is not the host's doing. Which of the library's
// goroutines is faster is a race, so this is done many times.
func TestARefusalBehindAJumpHost(t *testing.T) {
	t.Parallel()
	jump := startSSHD(t)
	via := jump.target()
	for name, test := range map[string]struct {
		behind *sshd
		kind   fleet.Kind
		answer fleet.Answer
		words  string
	}{
		"our key": {startSSHD(t), fleet.KindUnauthenticated, fleet.AnswerRefused, "refuses the key " + jump.key.Fingerprint()},
		"public keys": {
			startSSHD(t, configured("PubkeyAuthentication no", "PasswordAuthentication yes")),
			fleet.KindUnauthenticated, fleet.AnswerRefused, "put `PubkeyAuthentication yes`",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := test.behind.target()
			target.Via = &via
			dialer := NewDialer(jump.key, Options{ConnectTimeout: time.Minute, HandshakeTimeout: time.Minute, StepTimeout: time.Minute})
			for range 20 {
				_, err := dialer.Dial(t.Context(), target)
				if err == nil || fleet.KindOf(err) != test.kind || Answered(err) != test.answer || !strings.Contains(err.Error(), test.words) {
					t.Fatalf("%v (%s)", err, fleet.KindOf(err))
				}
			}
		})
	}
}

// TestWhoEndsALink: what fails before we end it is the host's doing or the network's, also where
// the other direction learns of it only afterwards.
func TestWhoEndsALink(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		writes, lost bool
	}{"we do": {false, false}, "a write fails first": {true, true}} {
		near, far := net.Pipe()
		far.Close()
		l := &link{Conn: near}
		if test.writes {
			if _, err := l.Write([]byte{0}); err == nil {
				t.Fatal("a write to a host that is gone succeeds")
			}
		}
		l.Close()
		if _, err := l.Read(make([]byte, 1)); err == nil || l.lost.Load() != test.lost {
			t.Errorf("%s: %v; lost: %t", name, err, l.lost.Load())
		}
	}
}
