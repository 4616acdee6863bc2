package equinix

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// projectListAge is how long after the end of a list of the project's devices the next one may
// begin that is made because the API refuses to show some (403).
const projectListAge = time.Minute

// projectListLimit is how long such a list may take. It has many pages, and each waits for its
// turn.
const projectListLimit = 10 * time.Minute

// projectListWait is how long a question waits for such a list. One that takes longer answers the
// next question about the device.
const projectListWait = 10 * time.Second

// absentMemo knows which devices the API refuses to show, and what the newest whole list has that
// was made for them. The list is the evidence; without the memo, it would be made for each of them.
type absentMemo struct {
	mu sync.Mutex
	// lists counts the lists that were begun. refused is how many there were when the API first
	// refused to show a device that it has not shown since.
	lists   int
	refused map[string]int
	// listing: a list is under way. done is closed when the newest one has ended, which was at ended.
	listing bool
	done    chan struct{}
	ended   time.Time
	// devices are those that the newest whole list has, which was the one of that number.
	devices map[string]bool
	whole   int
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

// list returns what is closed when the newest list has ended; nil where that is under way and was
// begun before the refusal, about which it says nothing. It begins one unless one is under way or
// young. The list is everybody's, so it goes on when the question ends that it is begun for.
func (m *absentMemo) list(ctx context.Context, since int, read func(context.Context) map[string]bool) (done <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.listing && m.lists <= since:
		return nil
	case m.listing, !m.ended.IsZero() && time.Since(m.ended) < projectListAge:
		return m.done
	}
	m.lists++
	m.listing, m.done = true, make(chan struct{})
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), projectListLimit)
		defer cancel()
		m.end(read(provider.WithBeforeSend(ctx, func(context.Context) error { return nil })))
	}()
	return m.done
}

// end notes what the list that was begun has. One that is not whole says nothing, and what an
// earlier one has said stays true.
func (m *absentMemo) end(devices map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if devices != nil {
		m.devices, m.whole = devices, m.lists
	}
	m.listing, m.ended = false, time.Now()
	close(m.done)
}

// lacks reports whether the newest whole list was begun later than so many others, and does not
// have the device.
func (m *absentMemo) lacks(id string, since int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.whole > since && !m.devices[id]
}

// has reports whether the API refuses to show a device that the newest whole list has, which was
// begun after the refusal.
func (m *absentMemo) has(id string) bool {
	id = strings.ToLower(id)
	m.mu.Lock()
	defer m.mu.Unlock()
	since, refused := m.refused[id]
	return refused && m.whole > since && m.devices[id]
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
	if !p.absent.lacks(id, since) {
		if done := p.absent.list(ctx, since, p.projectHas); done != nil {
			select {
			case <-done:
			case <-time.After(projectListWait):
			case <-ctx.Done():
			}
		}
		if !p.absent.lacks(id, since) {
			return failure
		}
	}
	p.absent.answered(id)
	return fleet.Errorf(fleet.KindNotFound, "project %s does not have device %s: the list of its devices lacks it, and %w", p.config.Project, id, failure)
}

// projectHas returns the IDs of the project's devices; nil when not all of them can be told. A list
// of several pages may look whole and lack a row: where one device goes and another comes between
// two pages, the rest moves up by one row, and there are as many as before. So such a list is made
// twice, and what either of them has is there.
func (p *Provider) projectHas(ctx context.Context) map[string]bool {
	rows, pages, err := p.listDevices(ctx, nil)
	if err == nil && pages > 1 {
		var again []deviceRow
		again, _, err = p.listDevices(ctx, nil)
		rows = append(rows, again...)
	}
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
