package provisioner_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// crowded is a provider that lists devices of others, and entries that cannot be used.
type crowded struct {
	*shepherdtest.FakeProvider
	devices, unusable int
	tokens            []fleet.Token
}

func (c *crowded) device(n int) provider.Entry {
	return provider.Entry{
		ID: fleet.ProviderID(fmt.Sprintf("other-%06d", n)), Capacity: fleet.CapacityID(fmt.Sprint("c", n)), Hostname: "other",
		Availability: fleet.AvailabilityKnownUsed, Status: fleet.ProviderStatusActive, CreatedAt: time.Now().Add(-24 * time.Hour), Tokens: c.tokens,
	}
}

func (c *crowded) List(context.Context) (entries []provider.Entry, err error) {
	for n := range c.devices {
		entries = append(entries, c.device(n))
	}
	for n := range c.unusable {
		entries = append(entries, provider.Entry{ID: fleet.ProviderID(fmt.Sprint("odd-", n)), Availability: fleet.AvailabilityKnownUsed, Invalid: "it is odd"})
	}
	return entries, nil
}

func (c *crowded) Get(_ context.Context, id fleet.ProviderID) (provider.Entry, error) {
	var n int
	_, err := fmt.Sscanf(string(id), "other-%d", &n)
	return c.device(n), err
}

// TestAListOfStrangersIsRecordedInPart: however much one list differs from the database, one
// transaction and the log take in a part of it (rule 12), and say how much is left out.
func TestAListOfStrangersIsRecordedInPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		var log bytes.Buffer
		b.logger = slog.New(slog.NewTextHandler(&log, nil))
		c := &crowded{FakeProvider: b.fake, devices: 1500, unusable: 50}
		b.provider = c
		b.restart()
		recorded := func() (found []bmdb.Discrepancy, more string) {
			for _, d := range b.view().Discrepancies {
				if d.ProviderID == "" {
					more = d.Evidence
					continue
				}
				found = append(found, d)
			}
			return found, more
		}
		b.pass()
		if n := strings.Count(log.String(), "entry is left alone"); n != 20 || !strings.Contains(log.String(), `"more entries are left alone"`) ||
			!strings.Contains(log.String(), "entries=30") {
			t.Errorf("%d entries are logged:\n%s", n, log.String())
		}
		first, more := recorded()
		if len(first) != 1000 || !strings.Contains(more, "there are 500 more") {
			t.Fatalf("%d are recorded, %q", len(first), more)
		}
		if got := b.result(); !strings.Contains(got, "creation is stopped: 1500 discrepancies") {
			t.Errorf("the result is %q", got)
		}
		b.pass()
		again, _ := recorded()
		if rows, err := b.db.ProviderHistory(t.Context(), source, 5000, true); err != nil || len(again) != 1000 || again[0].ProviderID != first[0].ProviderID {
			t.Errorf("%d are recorded, %v", len(again), err)
		} else {
			for _, row := range rows {
				if row.Event == fleet.EventDiscrepancyCleared {
					t.Fatalf("another one is recorded instead: %+v", row)
				}
			}
		}
		c.devices = 3
		b.pass()
		if left, more := recorded(); len(left) != 3 || more != "" {
			t.Errorf("%d are recorded, %q", len(left), more)
		}
	})
}
