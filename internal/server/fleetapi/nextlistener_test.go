package fleetapi

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// reasons joins what the decisions about a machine say.
func reasons(j judged) string {
	var all []string
	for _, d := range j.plan.Decisions {
		all = append(all, d.Reason)
	}
	return strings.Join(all, "; ")
}

// wantingInstall makes a machine with an agent, of which an install is wanted.
func wantingInstall(t *testing.T, db *bmdb.DB, must func(error)) fleet.MachineID {
	t.Helper()
	must(db.RegisterProvider(t.Context(), "metal", "equinix", 7))
	session, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "tester", Lease: time.Minute})
	must(err)
	claim := func(process fleet.Process) *bmdb.Work {
		t.Helper()
		c, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: process, Limit: 1})
		must(err)
		if len(c.Works) != 1 {
			t.Fatalf("%s: claimed %d", process, len(c.Works))
		}
		return c.Works[0]
	}
	id := fleet.NewMachineID()
	var opened []fleet.Intent
	work := claim(fleet.ProcessProvision)
	must(work.Note(t.Context(), bmdb.OpenIntents(0, []bmdb.NewIntent{{Capacity: "c", Machine: id, Token: fleet.NewToken()}}, &opened)))
	must(work.Finish(t.Context(), bmdb.IntentCalled(id), bmdb.CloseIntentProvided(id, "dev-1", fleet.Provided{
		Status: fleet.ProviderStatusActive, Hostname: "herd-1", Address: netip.MustParseAddr("192.0.2.7"), Capacity: "c",
	})))
	work = claim(fleet.ProcessAgentStart)
	a := bmdb.AgentIdentity{Machine: id, PublicKey: ed25519.PublicKey("key")}
	must(work.Note(t.Context(), bmdb.MintTakeover(0, &a.TakeoverGeneration)))
	must(work.Finish(t.Context(), bmdb.SetAgentStarted(fleet.AgentStarted{
		TakeoverGeneration: a.TakeoverGeneration, PublicKey: a.PublicKey, AgentVersion: "v1", BootID: "b1",
	})))
	must(db.RecordSpoken(t.Context(), a, "b1"))
	must(db.RecordHardware(t.Context(), a, []byte("r"), nil))
	_, err = db.RequestInstall(t.Context(), "ada", id, fleet.InstallRequest{
		Image: fleet.Image{URL: "https://images.example/x", Digest: "sha256:" + strings.Repeat("d", 64), Compression: fleet.CompressionNone},
	}, false)
	must(err)
	must(session.Close(t.Context(), "done"))
	return id
}

// TestAListenerThatAgentsDoNotGetThroughTo has its role: nobody is asked to start another control
// plane. Once it says nothing any more, nobody has the role.
func TestAListenerThatAgentsDoNotGetThroughTo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, must := openBMDB(t)
		s := New(db, Options{Logger: discardLog})
		id := wantingInstall(t, db, must)
		must(db.ListenerAlive(t.Context(), 5*time.Second, 30*time.Second))
		judge := func() (judged, *fleetv1.NextStep) {
			t.Helper()
			j, err := s.judge(t.Context(), string(id))
			must(err)
			return j, s.nextStep(t.Context(), j)
		}
		const nobody = "no live control plane has the role agent-api"
		since := clock(time.Now(), time.Now())
		for range 40 {
			must(db.ListenerFull(t.Context(), 4*time.Minute))
			time.Sleep(5 * time.Second)
		}
		want := "an agent listener has turned callers away for want of room, or has a certificate that agents refuse, since " + since + ": `ironherd status` says what ends that, or that no listener is up"
		if j, n := judge(); n.GetWho() != whoOperator || n.GetWhat() != want || strings.Contains(reasons(j), nobody) {
			t.Errorf("a certificate that agents refuse: %v, and %s", n, reasons(j))
		}
		// Another one, which agents may reach.
		must(db.ListenerAlive(t.Context(), 5*time.Second, 30*time.Second))
		if j, n := judge(); n.GetWho() == whoOperator || strings.Contains(reasons(j), nobody) {
			t.Errorf("another listener is up: %v, and %s", n, reasons(j))
		}
		time.Sleep(6 * time.Minute)
		if j, n := judge(); n.GetWho() != whoOperator || n.GetWhat() != nobodyHas(fleet.RoleAgentAPI, "") || !strings.Contains(reasons(j), nobody) {
			t.Errorf("none is up: %v, and %s", n, reasons(j))
		}
	})
}

// TestWhatTakesNoChangesLosesNoRoles: sessions cannot be extended then, so that every role looks
// missing. What a person would start, or ask for, cannot leave anything in the database either.
func TestWhatTakesNoChangesLosesNoRoles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, must := openBMDB(t)
		var full error
		s := New(db, Options{Logger: discardLog, Writable: func(context.Context) error { return full }})
		id := wantingInstall(t, db, must)
		judge := func(after time.Duration) (judged, *fleetv1.NextStep) {
			t.Helper()
			time.Sleep(after)
			j, err := s.judge(t.Context(), string(id))
			must(err)
			return j, s.nextStep(t.Context(), j)
		}
		full = errors.New("the database takes no changes: the disk is full")
		for _, after := range []time.Duration{time.Second, time.Hour} {
			j, n := judge(after)
			if n.GetWho() != whoOperator || n.GetCommand() != "" || n.GetWhat() != "the database takes no changes: the disk is full; until it takes them, what changes something is not done" {
				t.Errorf("after %s: %v", after, n)
			}
			if text := reasons(j) + j.summary(n); strings.Contains(text, "no live control plane") || !strings.Contains(text, "It is your turn: the database takes no changes: ") {
				t.Errorf("after %s: %s", after, text)
			}
		}
		full = nil
		if j, n := judge(0); n.GetWho() != whoOperator || n.GetWhat() != nobodyHas(fleet.RoleAgentAPI, "") || !strings.Contains(reasons(j), "no live control plane has the role ") {
			t.Errorf("with room: %v, and %s", n, reasons(j))
		}
		full = errors.New("the database takes no changes: the disk is full")
		now := time.Now()
		left := judged{now: now, env: fleet.Environment{Policy: fleet.DefaultPolicy()}, record: fleet.Record{
			Machine:        fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "dev-1", CreatedAt: now},
			Provided:       &fleet.Provided{At: now, Status: fleet.ProviderStatusActive, Hostname: "herd-1"},
			InstallRequest: &fleet.InstallRequest{Generation: 1, At: now, Image: fleet.Image{URL: "http://x/y"}},
			Installed:      &fleet.Installed{Generation: 1, Attempt: 1, At: now, BootID: "b1"},
		}}
		left.plan = lifecycle.Decide(left.record, left.env, now)
		if n := s.nextStep(t.Context(), left); n.GetWho() != whoNobody {
			t.Errorf("nothing is wanted of it: %v", n)
		}
	})
}
