package provider

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnOutageThatNobodySeesEnd is told no longer than it was seen lately: nobody asks the database
// for turns while nobody calls. One that is seen goes on being told, also while calls are rare.
func TestAnOutageThatNobodySeesEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimited(t, 2*time.Second)
		x := &trouble{Turns: l.db}
		p := l.process(x)
		told := func(want bool) {
			t.Helper()
			synctest.Wait()
			l.mu.Lock()
			defer l.mu.Unlock()
			if says := strings.Contains(p.pacing(), "hands out no turns"); says != want || (l.alone == 1) != want {
				t.Errorf("after %s: told %t, gauge %d, want %t", time.Since(l.begun), says, l.alone, want)
			}
		}
		call := func() {
			t.Helper()
			if err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		x.fails.Store(true)
		for range 3 {
			call()
			told(true)
			time.Sleep(time.Minute + 10*time.Second)
			told(true)
		}
		x.fails.Store(false)
		time.Sleep(turnsTold)
		told(false)

		x.fails.Store(true)
		call()
		told(true)
		x.fails.Store(false)
		time.Sleep(turnsRetry)
		call()
		told(false)
		time.Sleep(2 * time.Minute)
		told(false)
	})
}

// TestABurstAfterAnOutageThatIsNotTold has its calls paced by this process until the database
// answers, and what they are told says so.
func TestABurstAfterAnOutageThatIsNotTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimited(t, 2*time.Second)
		x := &trouble{Turns: l.db}
		p := l.process(x)
		x.fails.Store(true)
		if err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		x.fails.Store(false)
		x.hangs.Store(true)
		time.Sleep(2 * turnsTold)
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() { _ = p.Wait(t.Context()) })
		}
		synctest.Wait()
		if said := p.pacing(); !strings.Contains(said, "one call each 8s by this process alone") {
			t.Errorf("calls that wait are said to be paced with %q", said)
		}
		group.Wait()
		time.Sleep(turnsPatience)
	})
}
