package reconciler

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/node"
)

// TestWordsEnd: a word is over when it has been seen for as long as it was to hold, whatever the
// clock of who wrote it says, and where its end is long past after some minutes.
func TestWordsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w sightings
		seen := func(key string, revision int64, text string) {
			w.see(etcd.Snapshot{Entries: map[string]etcd.Entry{key: {Value: []byte(text), Revision: revision}}})
		}
		over := func(what, key string, at time.Time, want bool) {
			t.Helper()
			if got := w.over(key, at, at.Add(time.Hour)); got != want {
				t.Errorf("%s: %t", what, got)
			}
		}
		now := time.Now()
		seen("right", 11, "first")
		seen("ahead", 12, "")
		seen("late", 13, "")
		over("one that begins", "right", now, false)
		past := now.Add(-time.Hour - time.Second)
		over("one whose end is long past, or our clock is not set yet", "late", past.Add(-clockSlack), false)
		time.Sleep(clockSlack)
		over("one whose end is long past", "late", past.Add(-clockSlack), true)
		over("one of a clock that is behind", "late", past.Add(time.Minute), false)
		if w.over("right", time.Time{}, time.Time{}) {
			t.Error("one without an end")
		}
		time.Sleep(time.Hour - clockSlack - time.Second)
		seen("right", 11, "first")
		over("a moment before its end", "right", now, false)
		time.Sleep(time.Second)
		over("at its end", "right", now, true)
		over("one of a clock that is ahead", "ahead", now.Add(10*time.Hour), true)
		seen("right", 14, "second")
		over("one that was written anew", "right", time.Now(), false)
		time.Sleep(time.Hour)
		over("the second one at its end", "right", time.Now().Add(-time.Hour), true)
		for _, revision := range []int64{5, 14} {
			seen("right", revision, time.Now().String())
			over("one that was written after etcd was restored", "right", time.Now(), false)
			time.Sleep(time.Hour)
		}
	})
}

// TestOverridesEndInTime: the leader ends an override that etcd still has after its time, as it has
// when its own leader has changed.
func TestOverridesEndInTime(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	b := build("v1.0.0", "v1.0.0", "v1.0.0")
	store := func(scope string, at time.Time, length time.Duration) {
		t.Helper()
		o := Override{Effect: Pause, Scope: scope, Reason: "x", At: at, Until: at.Add(length)}
		text, err := json.Marshal(o)
		if err == nil {
			_, err = client.Put(t.Context(), overrideKey(layout, o), string(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	store("Secret", time.Now().Add(-time.Hour), time.Second)
	store("ConfigMap", time.Now().Add(-time.Minute), time.Hour)
	if o := look(t, client, layout, b); len(o.Overrides) != 1 || o.Overrides[0].Scope != "ConfigMap" {
		t.Errorf("status shows %+v", o.Overrides)
	}
	var r resources
	p := &paused{hand: r.hand("v1.0.0"), told: make(chan []Override, 1)}
	startSourced(t, client, Config{Node: "n1", Build: b, Layout: layout, FullPass: 50 * time.Millisecond, Settle: time.Millisecond}, p)
	told := func(what, want string) {
		t.Helper()
		eventually(t, what, func() bool {
			var scopes []string
			for _, each := range <-p.told {
				scopes = append(scopes, each.Scope)
			}
			return strings.Join(scopes, ", ") == want
		})
	}
	told("what holds", "ConfigMap")
	store("Deployment", time.Now().Add(10*time.Hour), 2*time.Second) // of a clock that is ahead
	told("both hold", "ConfigMap, Deployment")
	told("it has been seen for its time", "ConfigMap")
	read, err := etcd.Read(t.Context(), client, overrideRange(layout))
	if err != nil || len(read.Entries) != 1 {
		t.Errorf("etcd has %v, %v", read.Entries, err)
	}
}

// TestApprovalsAreShownWhileTheyHold: `status` and `plan` take an approval for over when its time
// is up, although etcd still has it.
func TestApprovalsAreShownWhileTheyHold(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	config := Config{Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, Logger: quiet(t)}
	for began, want := range map[time.Duration]bool{-time.Minute: true, -time.Hour - time.Minute: true, -2 * time.Hour: false} {
		a := Approval{Digest: "d1", At: time.Now().Add(began)}
		a.Until = a.At.Add(time.Hour)
		text, err := json.Marshal(a)
		if err == nil {
			_, err = client.Put(t.Context(), layout.Approval(), string(text))
		}
		if err != nil {
			t.Fatal(err)
		}
		if o := look(t, client, layout, config.Build); (o.Approval != nil) != want {
			t.Errorf("began %s ago: status shows %+v", -began, o.Approval)
		}
		p := &planner{sourced: &sourced{}, paused: paused{told: make(chan []Override, 1)}}
		if _, err := Plan(t.Context(), config, client, p); err != nil {
			t.Fatal(err)
		}
		if c, err := p.ask(t.Context(), node.Source{Digest: "d1"}); err != nil || c.Approved != want {
			t.Errorf("began %s ago: the plan was told %+v, %v", -began, c, err)
		}
	}
}

// TestTroubleOfAnEarlierLeader: neither that nor what it waited for is shown as what is. A leader
// that holds removes both: it runs no pass that could fail.
func TestTroubleOfAnEarlierLeader(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	register(t, client, layout, "old", "v1.0.0")
	text, err := done("v1.0.0", "v1.0.0").Encode()
	if err == nil {
		_, err = client.Put(t.Context(), layout.Status(), string(text))
	}
	if err == nil {
		_, err = client.Put(t.Context(), layout.Trouble(), `{"node":"old","error":"it has no disk"}`)
	}
	if err == nil {
		_, err = client.Put(t.Context(), layout.Deletions(), `{"node":"old","count":1,"objects":[{"object":"Thing x"}]}`)
	}
	if err != nil {
		t.Fatal(err)
	}
	b := build("v2.0.0", "v2.0.0", "v2.0.0")
	if o := look(t, client, layout, b); o.Trouble != nil || o.Deletions != nil {
		t.Errorf("nobody leads, and the trouble is %+v, and these are being deleted: %+v", o.Trouble, o.Deletions)
	}
	var r resources
	s := start(t, client, Config{Node: "n1", Build: b, Layout: layout}, &r)
	eventually(t, "the leader holds", func() bool { return s.State().Blocked != "" })
	eventually(t, "the trouble is gone", func() bool {
		trouble, err := etcd.Read(t.Context(), client, etcd.Range{Key: layout.Trouble()})
		deletions, errDeletions := etcd.Read(t.Context(), client, etcd.Range{Key: layout.Deletions()})
		return errors.Join(err, errDeletions) == nil && len(trouble.Entries)+len(deletions.Entries) == 0
	})
}
