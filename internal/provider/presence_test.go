package provider_test

import (
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

func TestPresence(t *testing.T) {
	t.Parallel()
	now, settling := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), 15*time.Minute
	const active, deleting, failed, gone = fleet.ProviderStatusActive, fleet.ProviderStatusDeleting, fleet.ProviderStatusFailed, fleet.ProviderStatusGone
	for _, test := range []struct {
		status            fleet.ProviderStatus
		age               time.Duration
		listed, releasing bool
		want              provider.Presence
		expected          bool
	}{
		{active, time.Hour, true, false, provider.PresenceListed, true},
		{active, time.Hour, true, true, provider.PresenceListed, true},
		{deleting, time.Hour, true, false, provider.PresenceListed, true},
		{active, time.Minute, true, false, provider.PresenceListed, true},
		{active, time.Hour, false, false, provider.PresenceMissing, true},
		{active, settling, false, false, provider.PresenceMissing, true},
		{active, -time.Hour, false, false, provider.PresenceMissing, true},
		{active, settling - 1, false, false, provider.PresenceExcused, false},
		{deleting, settling - 1, false, false, provider.PresenceExcused, false},
		{active, time.Hour, false, true, provider.PresenceExcused, false},
		{deleting, time.Hour, false, true, provider.PresenceExcused, false},
		{gone, time.Hour, false, true, provider.PresenceExcused, false},
		{gone, time.Hour, true, true, provider.PresenceExcused, false},
		{deleting, time.Hour, false, false, provider.PresenceLeft, false},
		{failed, time.Hour, false, false, provider.PresenceLeft, false},
		{gone, time.Minute, false, false, provider.PresenceGone, false},
		{gone, time.Minute, true, false, provider.PresenceBack, false},
	} {
		fact := fleet.Provided{Status: test.status, CreatedAt: now.Add(-test.age)}
		got := provider.PresenceOf(fact, test.listed, test.releasing, now, settling)
		if got != test.want || got.Expected() != test.expected {
			t.Errorf("%+v: got %s, expected there: %t", test, got, got.Expected())
		}
	}
	if provider.Young(time.Time{}, now, settling) {
		t.Error("what nobody knows the age of is young")
	}
}
