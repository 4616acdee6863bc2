package bmdbtest

import (
	"context"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Manage brings machines of a provider "p" to the point where their agents have spoken and
// reported.
func Manage(t *testing.T, db *bmdb.DB, n int, install *fleet.InstallRequest) []bmdb.AgentIdentity {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(db.RegisterProvider(ctx, "p", "test", 0))
	s, err := db.StartSession(ctx, bmdb.SessionOptions{Component: "test", Lease: time.Hour})
	must(err)
	must(db.ListenerAlive(ctx, time.Minute, 30*time.Second))
	c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessProvision, Limit: 1})
	must(err)
	var wanted []bmdb.NewIntent
	for range n {
		id := fleet.NewMachineID()
		wanted = append(wanted, bmdb.NewIntent{Capacity: fleet.CapacityID(id), Machine: id, Token: fleet.NewToken(), Install: install})
	}
	var opened []fleet.Intent
	changes := []bmdb.Change{bmdb.OpenIntents(0, wanted, &opened)}
	for _, i := range wanted {
		changes = append(changes, bmdb.CloseIntentProvided(i.Machine, fleet.ProviderID(i.Capacity), fleet.Provided{
			Status: fleet.ProviderStatusActive, Hostname: "h",
		}))
	}
	must(c.Works[0].Finish(ctx, changes...))
	var agents []bmdb.AgentIdentity
	for len(agents) < n {
		c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 100})
		must(err)
		for _, w := range c.Works {
			a := bmdb.AgentIdentity{Machine: w.Subject.Machine, PublicKey: []byte("k")}
			must(w.Note(ctx, bmdb.MintTakeover(0, &a.TakeoverGeneration)))
			must(w.Finish(ctx, bmdb.SetAgentStarted(fleet.AgentStarted{TakeoverGeneration: a.TakeoverGeneration, PublicKey: a.PublicKey})))
			must(db.RecordSpoken(ctx, a, "b"))
			must(db.RecordHardware(ctx, a, []byte("r"), nil))
			agents = append(agents, a)
		}
	}
	must(s.Close(ctx, "done"))
	return agents
}
