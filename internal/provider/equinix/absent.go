package equinix

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// projectListAge bounds how often the project's devices are listed because the API refuses to show
// some (403), and for how long one list answers for those.
const projectListAge = time.Minute

// absentMemo knows which devices the API refuses to show, and what the newest list that was made
// for them has. The list is the evidence; without the memo, it would be made for each of them.
type absentMemo struct {
	// turn has room for the one caller that lists.
	turn chan struct{}

	mu sync.Mutex
	// lists counts the lists that were begun. refused is how many there were when the API first
	// refused to show a device that it has not shown since.
	lists   int
	refused map[string]int
	// ended is when the newest list ended. devices are those it has; nil where it is not whole.
	ended   time.Time
	devices map[string]bool
}

// refuses notes that the API refuses to show a device, and returns how many lists had been begun
// when it first did.
func (m *absentMemo) refuses(id string) (since int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	since, before := m.refused[id]
	if !before {
		since = m.lists
		m.refused[id] = since
	}
	return since
}

// answered notes that the API has said of a device what it is, or that it is not there.
func (m *absentMemo) answered(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.refused, id)
}

// begin notes that a list is begun, unless the newest one is young.
func (m *absentMemo) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended.IsZero() && time.Since(m.ended) < projectListAge {
		return false
	}
	m.lists++
	return true
}

// end notes what the list that was begun has.
func (m *absentMemo) end(devices map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended, m.devices = time.Now(), devices
}

// lacks reports whether the newest list was begun later than so many others, and does not have the
// device.
func (m *absentMemo) lacks(id string, since int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.devices != nil && m.lists > since && !m.devices[id]
}

// has reports whether the API refuses to show a device that the newest list has, which was begun
// after the refusal.
func (m *absentMemo) has(id string) bool {
	id = strings.ToLower(id)
	m.mu.Lock()
	defer m.mu.Unlock()
	since, refused := m.refused[id]
	return refused && m.lists > since && m.devices[id]
}

// judge returns what the failure of a question about a device means. The API refuses to show a
// device that is not the project's any more, as it refuses to show one that is. A whole list of the
// project's devices, made with the same token after the refusal, tells which. Without such a list,
// the refusal stays one.
func (p *Provider) judge(ctx context.Context, id string, failure error) error {
	id = strings.ToLower(id)
	answer, is := errors.AsType[*answerError](failure)
	if !is || !answer.fromAPI || answer.status != http.StatusForbidden {
		if failure == nil || fleet.KindOf(failure) == fleet.KindNotFound {
			p.absent.answered(id)
		}
		return failure
	}
	since := p.absent.refuses(id)
	select {
	case p.absent.turn <- struct{}{}:
		defer func() { <-p.absent.turn }()
	case <-ctx.Done():
		return failure
	}
	if p.absent.begin() {
		p.absent.end(p.projectHas(ctx))
	}
	if !p.absent.lacks(id, since) {
		return failure
	}
	p.absent.answered(id)
	return fleet.Errorf(fleet.KindNotFound, "project %s does not have device %s: the list of its devices lacks it, and %w", p.config.Project, id, failure)
}

// projectHas returns the IDs of the project's devices; nil when not all of them can be told.
func (p *Provider) projectHas(ctx context.Context) map[string]bool {
	rows, err := p.listDevices(ctx, nil)
	if err != nil {
		return nil
	}
	devices := make(map[string]bool, len(rows))
	for _, row := range rows {
		if row.id == "" {
			return nil
		}
		devices[strings.ToLower(row.id)] = true
	}
	return devices
}
