package cli

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestAnOutageThatDoesNotEnd: a command that waits gives up when nothing is answered for ten
// minutes, and an answer in between begins them anew.
func TestAnOutageThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told bytes.Buffer
		a := &app{env: Env{Stderr: &told}}
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		lost := fleet.Errorf(fleet.KindTemporary, "nobody answers")
		lasted := func() time.Duration {
			began := time.Now()
			for a.askAgain(t.Context(), ticker, lost) {
				if time.Since(began) > time.Hour {
					t.Fatal("it never gives up")
				}
			}
			return time.Since(began)
		}
		for range 2 {
			if d := lasted(); d < outagePatience || d > outagePatience+2*time.Second {
				t.Errorf("it gave up after %s", d)
			}
			if d := lasted(); d != 0 {
				t.Errorf("the next machine was waited for another %s", d)
			}
			a.askAgain(t.Context(), ticker, nil)
		}
		if n := strings.Count(told.String(), "nobody answers"); n != 2 {
			t.Errorf("told %d times: %s", n, told.String())
		}
	})
}
