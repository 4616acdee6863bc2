package equinix

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/packethost/packngo"

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

// projectListTells is how long such a list is evidence after its end. It answers all who ask
// about a device in that time: if the first answer used it up, whoever asks most often would have
// every list, and nobody else an answer. It is longer than the updater takes to ask about the same
// device again, where many are missing and several processes take turns. Where it is known since
// when the question has been asked (provider.AskedSince), a list from before is no evidence at all.
const projectListTells = 24 * time.Hour

// refusalKept is how long a refusal is remembered that nobody has met again.
const refusalKept = 7 * 24 * time.Hour

// absentMemo knows which devices the API refuses to show, and what the newest whole list has that
// was made for them. The list is the evidence; without the memo, it would be made for each of them.
type absentMemo struct {
	mu sync.Mutex
	// lists counts the lists that were begun. refused has the devices that the API has refused to
	// show, and not shown since.
	lists   int
	refused map[string]hidden
	// listing: a list is under way. The newest one was begun at began. done is closed when it has
	// ended, which was at ended.
	listing      bool
	done         chan struct{}
	began, ended time.Time
	// devices are those that the newest whole list has, which was the one of that number, was begun
	// at wholeBegan and had ended at wholeEnded.
	devices                map[string]bool
	whole                  int
	wholeBegan, wholeEnded time.Time
}

// hidden is a device that the API refuses to show: how many lists had been begun when it first
// did, and when it last did.
type hidden struct {
	since int
	last  time.Time
}

// refuses notes that the API refuses to show a device, and returns how many lists had been begun
// when it first did.
func (m *absentMemo) refuses(id string) (since int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, before := m.refused[id]
	if !before {
		r.since = m.lists
	}
	r.last = time.Now()
	m.refused[id] = r
	return r.since
}

// answered notes that the API has said of a device what it is, or that it is not there.
func (m *absentMemo) answered(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.refused, id)
}

// listed notes that a list has a device: a list from before that lacks it is no evidence any more.
func (m *absentMemo) listed(devices []deviceRow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.refused) == 0 {
		return
	}
	for _, device := range devices {
		if id := strings.ToLower(device.id); !m.devices[id] {
			delete(m.refused, id)
		}
	}
}

// list returns what is closed when the newest list has ended; nil where that is under way and was
// begun before the refusal, or before anybody asked: it says nothing about that. It begins one
// unless one is under way or young. The list is everybody's, so it goes on when the question ends
// that it is begun for.
func (m *absentMemo) list(ctx context.Context, since int, read func(context.Context) map[string]bool) (done <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.listing && (m.lists <= since || m.began.Before(provider.AskedSince(ctx))):
		return nil
	case m.listing, !m.ended.IsZero() && time.Since(m.ended) < projectListAge:
		return m.done
	}
	m.lists++
	m.listing, m.done, m.began = true, make(chan struct{}), time.Now()
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
	m.listing, m.ended = false, time.Now()
	if devices != nil {
		m.devices, m.whole, m.wholeBegan, m.wholeEnded = devices, m.lists, m.began, m.ended
	}
	maps.DeleteFunc(m.refused, func(_ string, r hidden) bool { return time.Since(r.last) > refusalKept })
	close(m.done)
}

// tells reports whether the newest whole list was begun later than so many others, and not before
// anybody asked.
func (m *absentMemo) tells(asked time.Time, since int) bool {
	return m.whole > since && !m.wholeBegan.Before(asked)
}

// lacks reports whether the newest whole list tells, is not too old to, and does not have the
// device.
func (m *absentMemo) lacks(id string, asked time.Time, since int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tells(asked, since) && time.Since(m.wholeEnded) < projectListTells && !m.devices[id]
}

// has reports whether the API refuses to show a device that the newest whole list has, which tells.
func (m *absentMemo) has(id string, asked time.Time) bool {
	id = strings.ToLower(id)
	m.mu.Lock()
	defer m.mu.Unlock()
	r, refused := m.refused[id]
	return refused && m.tells(asked, r.since) && m.devices[id]
}

// judge returns what the failure of a question about a device means. The API refuses to show a
// device that is not the project's any more, as it refuses to show one that is. A whole list of the
// project's devices, made with the same token after the refusal, and not before anybody asked,
// tells which. Without such a list, the refusal stays one.
func (p *Provider) judge(ctx context.Context, id string, failure error) error {
	if doubt := p.believed(ctx, failure); fleet.KindOf(doubt) != fleet.KindOf(failure) {
		return doubt
	}
	id = strings.ToLower(id)
	answer, is := errors.AsType[*answerError](failure)
	if !is || !answer.fromAPI || answer.status != http.StatusForbidden {
		if failure == nil || fleet.KindOf(failure) == fleet.KindNotFound {
			p.absent.answered(id)
		}
		return failure
	}
	since, asked := p.absent.refuses(id), provider.AskedSince(ctx)
	if !p.absent.lacks(id, asked, since) {
		if done := p.absent.list(ctx, since, p.projectHas); done != nil {
			select {
			case <-done:
			case <-time.After(projectListWait):
			case <-ctx.Done():
			}
		}
		if !p.absent.lacks(id, asked, since) {
			return failure
		}
	}
	return fleet.Errorf(fleet.KindNotFound, "project %s does not have device %s: the list of its devices lacks it, and %w", p.config.Project, id, failure)
}

// projectAnswerTells is how long an answer about the project shows that the API is there.
const projectAnswerTells = time.Minute

// answers notes that the API has told something of the project.
func (p *Provider) answers() {
	now := time.Now()
	p.answered.Store(&now)
}

// believed returns a failure that says that a device is not there, where the API answers about the
// project: one that was retired, or that api_url misses, has no device at all. Else the failure
// says nothing of the device.
func (p *Provider) believed(ctx context.Context, failure error) error {
	if last := p.answered.Load(); fleet.KindOf(failure) != fleet.KindNotFound || provider.WasMoved(failure) ||
		last != nil && time.Since(*last) < projectAnswerTells {
		return failure
	}
	what := "get project " + p.config.Project
	client, err := p.client(ctx, what)
	if err != nil {
		return err
	}
	var found struct {
		ID string `json:"id"`
	}
	response, err := client.DoRequest(http.MethodGet, "projects/"+p.config.Project, nil, &found)
	err = classify(what, response, err)
	if theirs, named := parseUUID(found.ID); err == nil && named && theirs.String() == p.config.Identity() {
		p.answers()
		return failure
	}
	// A token may be shown the devices of a project, and not the project.
	one := packngo.ListOptions{Page: 1, PerPage: 1}
	_, none := p.readPage(ctx, what, one.WithQuery("projects/"+p.config.Project+"/devices"))
	if none == nil {
		return failure
	}
	for _, err := range []error{err, none} { // what passes says nothing of the API
		switch kind := fleet.KindOf(err); kind {
		case fleet.KindThrottled, fleet.KindTimeout, fleet.KindTemporary, fleet.KindUnauthenticated:
			return &fleet.Error{
				Kind: kind, RetryAfter: fleet.RetryAfter(err), Err: err,
				Message: fmt.Sprintf("%s, which is not believed before the API shows project %s", failure, p.config.Project),
			}
		}
	}
	return &fleet.Error{
		Kind: fleet.KindUnknown, Err: cmp.Or(err, none),
		Message: fmt.Sprintf("%s, which is not believed while the API shows neither project %s nor its devices: see whether api_url is the provider's; "+
			"where the project was deleted, take the provider out of the configuration, and forget its machines", failure, p.config.Project),
	}
}

// projectHas returns the IDs of the project's devices; nil when not all of them can be told. A list
// of several pages may look whole and lack a row: where one device goes and another comes between
// two pages, the rest moves up by one row, and there are as many as before. So such a list is made
// twice, and what either of them has is there.
func (p *Provider) projectHas(ctx context.Context) map[string]bool {
	rows, pages, err := p.listDevices(ctx, nil, false)
	if err == nil && pages > 1 {
		var again []deviceRow
		again, _, err = p.listDevices(ctx, nil, false)
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
