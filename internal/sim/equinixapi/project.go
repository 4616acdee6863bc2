package equinixapi

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

func projectHref(id string) string { return Prefix + "/projects/" + id }

func (a *API) userHref() string { return Prefix + "/users/" + a.user }

func (a *API) renderUser(v view) obj {
	return obj{
		"id": a.user, "short_id": a.user[:8], "href": a.userHref(), "first_name": "Simon", "last_name": "Ulator", "full_name": "Simon Ulator",
		"email": "simon@example.com", "default_organization_id": a.org, "default_project_id": a.project, "timezone": "UTC",
		"created_at": epoch, "updated_at": epoch,
		"default_organization": v.ref("default_organization", Prefix+"/organizations/"+a.org, a.renderOrganization),
	}
}

// epoch is when everything was made that was there from the beginning.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (a *API) getUser(w http.ResponseWriter, r *http.Request) {
	if id := r.PathValue("id"); id != "" && id != a.user {
		writeError(w, errNotFound)
		return
	}
	writeJSON(w, http.StatusOK, a.renderUser(viewOf(r)))
}

func (a *API) listUsers(w http.ResponseWriter, r *http.Request) {
	v := viewOf(r)
	writePage(a, w, r, "users", []obj{a.renderUser(v)}, encodeObject)
}

func (a *API) renderOrganization(v view) obj {
	a.mu.RLock()
	ids := slices.Sorted(maps.Keys(a.projects))
	a.mu.RUnlock()
	return obj{
		"id": a.org, "href": Prefix + "/organizations/" + a.org, "name": "Ironherd", "description": "simulated", "website": "", "twitter": "",
		"created_at": epoch, "updated_at": epoch,
		"projects": refs(v, "projects", ids, projectHref, func(id string, v view) obj {
			p, ok := a.projectOf(id)
			if !ok {
				return hrefTo(projectHref(id))
			}
			return a.renderProject(p, v)
		}),
		"members":       []obj{v.ref("members", a.userHref(), a.renderUser)},
		"owners":        []obj{v.ref("owners", a.userHref(), a.renderUser)},
		"primary_owner": v.ref("primary_owner", a.userHref(), a.renderUser),
		"address":       obj{"address": "1 Simulated Street", "city": "Amsterdam", "zip_code": "00000", "country": "NL"},
		"memberships":   []obj{},
	}
}

// createOrganization refuses: a world has one organization.
func (a *API) createOrganization(w http.ResponseWriter, _ *http.Request) {
	writeError(w, unprocessable("A simulated provider has one organization: create a project in it"))
}

func (a *API) listOrganizations(w http.ResponseWriter, r *http.Request) {
	writePage(a, w, r, "organizations", []obj{a.renderOrganization(viewOf(r))}, encodeObject)
}

func (a *API) getOrganization(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("id") != a.org {
		writeError(w, errNotFound)
		return
	}
	writeJSON(w, http.StatusOK, a.renderOrganization(viewOf(r)))
}

func (a *API) projectOf(id string) (*project, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	p, ok := a.projects[id]
	return p, ok
}

func (a *API) renderProject(p *project, v view) obj {
	a.mu.RLock()
	var devices []*device
	for _, d := range a.devices {
		if d.Project == p.ID {
			devices = append(devices, d)
		}
	}
	keys := a.keysOf(func(k *key) bool { return k.Project == p.ID })
	a.mu.RUnlock()
	byNumber(devices)
	return obj{
		"id": p.ID, "href": projectHref(p.ID), "name": p.Name, "created_at": p.Created, "updated_at": p.Created, "max_devices": obj{},
		"backend_transfer_enabled": p.BackendTransfer, "type": "default", "tags": nonNil(p.Tags),
		"organization":   v.ref("organization", Prefix+"/organizations/"+a.org, a.renderOrganization),
		"members":        []obj{v.ref("members", a.userHref(), a.renderUser)},
		"memberships":    []obj{},
		"invitations":    []obj{},
		"payment_method": v.ref("payment_method", Prefix+"/payment-methods/"+a.id("payment", 0), a.renderPayment),
		"devices":        refs(v, "devices", devices, func(d *device) string { return deviceHref(d.ID) }, a.renderDevice),
		"ssh_keys":       refs(v, "ssh_keys", keys, func(k *key) string { return keyHref(k.ID) }, a.renderKey),
	}
}

func (a *API) renderPayment(view) obj {
	id := a.id("payment", 0)
	return obj{"id": id, "href": Prefix + "/payment-methods/" + id, "name": "Simulated", "type": "credit_card", "created_at": epoch, "updated_at": epoch}
}

func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func (a *API) listProjects(w http.ResponseWriter, r *http.Request) {
	a.mu.RLock()
	list := slices.Collect(maps.Values(a.projects))
	a.mu.RUnlock()
	query := r.URL.Query()
	name := cmp.Or(query.Get("name"), query.Get("search"))
	list = slices.DeleteFunc(list, func(p *project) bool { return !strings.Contains(p.Name, name) })
	slices.SortFunc(list, func(x, y *project) int { return cmp.Or(x.Created.Compare(y.Created), strings.Compare(x.ID, y.ID)) })
	err := arrange(a, r, list, map[string]func(*project) string{
		"id": func(p *project) string { return p.ID }, "name": func(p *project) string { return p.Name },
		"created_at": func(p *project) string { return p.Created.Format(sortable) },
	})
	if err != nil {
		writeError(w, err)
		return
	}
	v := viewOf(r)
	writePage(a, w, r, "projects", list, func(p *project) []byte { return encode(a.renderProject(p, v)) })
}

func (a *API) getProject(w http.ResponseWriter, r *http.Request) {
	p, ok := a.projectOf(r.PathValue("id"))
	if !ok {
		writeError(w, errNotFound)
		return
	}
	writeJSON(w, http.StatusOK, a.renderProject(p, viewOf(r)))
}

// projectRequest creates or changes a project.
type projectRequest struct {
	Name            *string `json:"name"`
	Tags            *names  `json:"tags"`
	BackendTransfer *bool   `json:"backend_transfer_enabled"`
}

func (p projectRequest) apply(to *project) error {
	if p.Name != nil {
		to.Name = strings.TrimSpace(*p.Name)
	}
	if p.Tags != nil {
		to.Tags = *p.Tags
	}
	if p.BackendTransfer != nil {
		to.BackendTransfer = *p.BackendTransfer
	}
	if to.Name == "" {
		return unprocessable("Name can't be blank")
	}
	if len(to.Name) > 80 {
		return unprocessable("Name is too long (maximum is 80 characters)")
	}
	return nil
}

func (a *API) createProject(w http.ResponseWriter, r *http.Request) {
	var request projectRequest
	if err := readJSON(w, r, &request); err != nil {
		writeError(w, err)
		return
	}
	p := &project{Created: now()}
	err := request.apply(p)
	if err == nil {
		err = a.locked(func() error {
			next := a.counters
			next.Projects++
			p.ID = a.id("project", next.Projects)
			return a.saveProject(p, next)
		})
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusCreated, a.renderProject(p, viewOf(r)))
}

func (a *API) saveProject(p *project, next counters) error {
	if err := a.commit(put("project/"+p.ID, p), put("counters", next)); err != nil {
		return err
	}
	a.projects[p.ID], a.counters = p, next
	return nil
}

func (a *API) updateProject(w http.ResponseWriter, r *http.Request) {
	var request projectRequest
	if err := readJSON(w, r, &request); err != nil {
		writeError(w, err)
		return
	}
	var updated *project
	err := a.locked(func() error {
		old := a.projects[r.PathValue("id")]
		if old == nil {
			return errNotFound
		}
		next := *old
		if err := request.apply(&next); err != nil {
			return err
		}
		updated = &next
		return a.saveProject(updated, a.counters)
	})
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, a.renderProject(updated, viewOf(r)))
}

func (a *API) deleteProject(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	err := a.locked(func() error {
		switch {
		case a.projects[id] == nil:
			return errNotFound
		case id == a.project:
			return unprocessable("Cannot delete the first project: new hardware reservations belong to it")
		}
		for _, d := range a.devices {
			if d.Project == id {
				return unprocessable("Cannot delete a project that has devices")
			}
		}
		for slot := range a.cfg.Reservations {
			if a.reservationProject(slot) == id {
				return unprocessable("Cannot delete a project that has hardware reservations: move them to another project")
			}
		}
		changes := []Change{{Key: "project/" + id}}
		for _, k := range a.keys {
			if k.Project == id {
				changes = append(changes, Change{Key: "key/" + k.ID})
			}
		}
		for _, b := range a.batches {
			if b.Project == id {
				changes = append(changes, Change{Key: "batch/" + b.ID})
			}
		}
		if err := a.commit(changes...); err != nil {
			return err
		}
		delete(a.projects, id)
		maps.DeleteFunc(a.keys, func(_ string, k *key) bool { return k.Project == id })
		maps.DeleteFunc(a.batches, func(_ string, b *batch) bool { return b.Project == id })
		return nil
	})
	if err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// locked runs do under the lock.
func (a *API) locked(do func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return do()
}
