package bmdb

import (
	"context"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/verb"
)

// absence is for how long nobody must have had a role before it is missing, and for how long nobody
// must have worked at a provider before it is unserved. The restart of a control plane takes less.
const absence = time.Minute

// everywhere stands in a session for all providers.
const everywhere = "*"

// attendance is until when control planes have had their parts, by the components of roles.
type attendance struct {
	// early: this process has been up for less than absence.
	early bool
	// since is the instant before which a part must have ended to be missing, and now that of the
	// snapshot.
	since, now int64
	until      map[string]int64
	// at is the same for each provider, under everywhere for all of them.
	at map[string]map[string]int64
}

func (t *transaction) attendance(ctx context.Context) (attendance, error) {
	if t.parts != nil {
		return *t.parts, nil
	}
	a := attendance{
		early: t.Now().Sub(t.db.opened) < absence, since: micros(t.Now().Add(-absence)), now: micros(t.Now()),
		until: make(map[string]int64), at: make(map[string]map[string]int64),
	}
	sessions, err := t.q.ListLastSessions(ctx)
	if err != nil {
		return a, err
	}
	for _, s := range sessions {
		a.until[s.Component] = max(a.until[s.Component], s.Until)
		at := a.at[s.Component]
		if at == nil {
			at = make(map[string]int64)
			a.at[s.Component] = at
		}
		for _, provider := range strings.Fields(s.Providers) {
			at[provider] = max(at[provider], s.Until)
		}
	}
	env, err := t.q.GetEnvironment(ctx)
	if err != nil {
		return a, err
	}
	// A listener that agents do not get through to has the role all the same.
	a.until[fleet.RoleAgentAPI.Component()] = max(env.ValidUntil, min(env.FullUntil, a.now))
	t.parts = &a
	return a, nil
}

// missing returns the roles that no live control plane has. Their proof of life is a session of
// their component, that of the agent API its listener. The operator API has none: whoever asks,
// asks it. A role that somebody had within the last minute is not missing. In the first minute of
// this process none is, because whoever starts together with it needs a moment.
func (a attendance) missing() (missing []fleet.Role) {
	for _, role := range fleet.Roles() {
		if !a.early && role != fleet.RoleOperatorAPI && a.until[role.Component()] < a.since {
			missing = append(missing, role)
		}
	}
	return missing
}

// servedUntil is until when somebody had the role for that provider, or will have it. A session
// that does not say at which providers it works, as those of versions before, counts for all.
func (a attendance) servedUntil(role fleet.Role, provider fleet.ProviderName) int64 {
	at := a.at[role.Component()]
	return max(at[string(provider)], at[everywhere])
}

// unserved returns the roles of loops that somebody has, but nobody for that provider.
func (a attendance) unserved(provider fleet.ProviderName) (unserved []fleet.Role) {
	for _, role := range fleet.Roles() {
		if role.AtProviders() && !a.early && a.held(role) && !a.serves(role, provider) {
			unserved = append(unserved, role)
		}
	}
	return unserved
}

// service is who serves a provider, as verbs ask.
func (a attendance) service(provider fleet.ProviderName) verb.Service {
	s := verb.Service{Unserved: a.unserved(provider)}
	switch may := a.checkUnserved(provider); {
	case may == nil:
		s.Abandoned = true
	case a.servedUntil(fleet.RoleOperations, provider) < a.now: // by who would give a machine back
		s.MayServe = may
	}
	return s
}

// held reports whether somebody has the role, and serves whether for that provider. Who starts
// together with this process may need a moment still.
func (a attendance) held(role fleet.Role) bool { return a.until[role.Component()] >= a.since }

func (a attendance) serves(role fleet.Role, provider fleet.ProviderName) bool {
	return a.servedUntil(role, provider) >= a.since
}

// checkUnserved fails unless control planes are up, and none of them serves the provider in any
// role. While none is up, all providers look alike.
func (a attendance) checkUnserved(provider fleet.ProviderName) error {
	for _, role := range fleet.Roles() {
		switch until := a.at[role.Component()]; {
		case !role.AtProviders():
		case until[string(provider)] >= a.since:
			return fleet.Errorf(fleet.KindConflict, "a control plane that has the role %s serves provider %s, or did within the last minute: "+
				"`ironherd session list` tells which; take the provider out of the configuration of all of them first", role, provider)
		case until[everywhere] >= a.since:
			return fleet.Errorf(fleet.KindConflict, "a control plane that has the role %s does not say whether it serves provider %s, because its "+
				"version is an older one: upgrade it first", role, provider)
		}
	}
	switch {
	case a.early:
		return fleet.Errorf(fleet.KindConflict, "who serves provider %s is not known in the first minute of a control plane: try again", provider)
	case a.until[fleet.RoleProvisioner.Component()] < a.since:
		return fleet.Errorf(fleet.KindConflict, "no live control plane has the role %s, so who serves provider %s is not known: start one first",
			fleet.RoleProvisioner, provider)
	}
	return nil
}
