package equinixapi

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

func keyHref(id string) string { return Prefix + "/ssh-keys/" + id }

func (a *API) renderKey(k *key, v view) obj {
	owner := func(name string) obj { return v.ref(name, a.userHref(), a.renderUser) }
	if k.Project != "" {
		owner = func(name string) obj {
			return v.ref(name, projectHref(k.Project), func(v view) obj {
				p, ok := a.projectOf(k.Project)
				if !ok {
					return hrefTo(projectHref(k.Project))
				}
				return a.renderProject(p, v)
			})
		}
	}
	fingerprint := ""
	if public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(k.Key)); err == nil {
		fingerprint = ssh.FingerprintLegacyMD5(public)
	}
	o := obj{
		"id": k.ID, "href": keyHref(k.ID), "label": k.Label, "key": k.Key, "fingerprint": fingerprint, "tags": nonNil(k.Tags),
		"created_at": k.Created, "updated_at": k.Updated, "owner": owner("owner"), "entity": owner("entity"),
	}
	if k.Project == "" {
		o["user"] = owner("user")
	}
	return o
}

// keysOf lists keys in the order of their creation. The caller holds the lock.
func (a *API) keysOf(want func(*key) bool) []*key {
	var list []*key
	for _, k := range a.keys {
		if want(k) {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, func(x, y *key) int { return cmp.Compare(x.Number, y.Number) })
	return list
}

func (a *API) writeKeys(w http.ResponseWriter, r *http.Request, want func(*key) bool) {
	search := cmp.Or(r.URL.Query().Get("search"), r.URL.Query().Get("query"))
	a.mu.RLock()
	list := a.keysOf(func(k *key) bool {
		return want(k) && (search == "" || strings.Contains(k.Label, search) || strings.Contains(k.Key, search))
	})
	a.mu.RUnlock()
	v := viewOf(r)
	a.writeAll(w, "ssh_keys", len(list), func(i int) obj { return a.renderKey(list[i], v) })
}

// listUserKeys lists the user's keys, and those of the projects that the user belongs to: all.
func (a *API) listUserKeys(w http.ResponseWriter, r *http.Request) {
	a.writeKeys(w, r, func(*key) bool { return true })
}

func (a *API) listProjectKeys(w http.ResponseWriter, r *http.Request) {
	a.writeKeys(w, r, func(k *key) bool { return k.Project == r.PathValue("id") })
}

func (a *API) listDeviceKeys(w http.ResponseWriter, r *http.Request) {
	d, ok := a.deviceOf(r.PathValue("id"))
	if !ok {
		writeError(w, errNotFound)
		return
	}
	a.writeKeys(w, r, func(k *key) bool { return slices.Contains(d.Keys, k.ID) })
}

func (a *API) getKey(w http.ResponseWriter, r *http.Request) {
	a.mu.RLock()
	k := a.keys[r.PathValue("id")]
	a.mu.RUnlock()
	if k == nil {
		writeError(w, errNotFound)
		return
	}
	writeJSON(w, http.StatusOK, a.renderKey(k, viewOf(r)))
}

// keyRequest creates or changes a key.
type keyRequest struct {
	Label *string `json:"label"`
	Key   *string `json:"key"`
	Tags  *names  `json:"tags"`
}

// apply changes a key; the caller holds the lock.
func (q keyRequest) apply(a *API, to *key) error {
	if q.Label != nil {
		to.Label = *q.Label
	}
	if q.Key != nil {
		to.Key = *q.Key
	}
	if q.Tags != nil {
		to.Tags = *q.Tags
	}
	var wrong []string
	if strings.TrimSpace(to.Label) == "" {
		wrong = append(wrong, "Label can't be blank")
	}
	public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(to.Key))
	if err != nil {
		wrong = append(wrong, "Key is not a valid SSH public key")
	} else {
		for _, other := range a.keys {
			known, _, _, _, err := ssh.ParseAuthorizedKey([]byte(other.Key))
			if err == nil && other.ID != to.ID && other.Project == to.Project && string(known.Marshal()) == string(public.Marshal()) {
				wrong = append(wrong, "Key has already been taken")
				break
			}
		}
	}
	if len(wrong) > 0 {
		return unprocessable(wrong...)
	}
	return nil
}

func (a *API) createUserKey(w http.ResponseWriter, r *http.Request) { a.createKey(w, r, "") }

func (a *API) createProjectKey(w http.ResponseWriter, r *http.Request) {
	a.createKey(w, r, r.PathValue("id"))
}

func (a *API) createKey(w http.ResponseWriter, r *http.Request, project string) {
	var request keyRequest
	if err := readJSON(w, r, &request); err != nil {
		writeError(w, err)
		return
	}
	k := &key{Project: project, Created: now(), Updated: now()}
	err := a.locked(func() error {
		next := a.counters
		next.Keys++
		k.ID, k.Number = a.id("key", next.Keys), next.Keys
		if err := request.apply(a, k); err != nil {
			return err
		}
		return a.saveKey(k, next)
	})
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusCreated, a.renderKey(k, viewOf(r)))
}

func (a *API) saveKey(k *key, next counters) error {
	if err := a.commit(put("key/"+k.ID, k), put("counters", next)); err != nil {
		return err
	}
	a.keys[k.ID], a.counters = k, next
	return nil
}

func (a *API) updateKey(w http.ResponseWriter, r *http.Request) {
	var request keyRequest
	if err := readJSON(w, r, &request); err != nil {
		writeError(w, err)
		return
	}
	var updated *key
	err := a.locked(func() error {
		old := a.keys[r.PathValue("id")]
		if old == nil {
			return errNotFound
		}
		next := *old
		next.Updated = now()
		if err := request.apply(a, &next); err != nil {
			return err
		}
		updated = &next
		return a.saveKey(updated, a.counters)
	})
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, a.renderKey(updated, viewOf(r)))
}

func (a *API) deleteKey(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	err := a.locked(func() error {
		if a.keys[id] == nil {
			return errNotFound
		}
		if err := a.commit(Change{Key: "key/" + id}); err != nil {
			return err
		}
		delete(a.keys, id)
		return nil
	})
	if err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
